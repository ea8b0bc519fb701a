"""`spotwise simulate paper`, on clusters and jobs so small that they take no time, and its `--check`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from spotwise.cli.simulate.progress import CLUSTERS
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.studies.splitwise.headlines import ClusterHeadline
from tests.unit.cli.command_line import CommandLine
from tests.unit.simulator.runs.summaries import summary


def test_the_fastserve_paper_is_measured_again(spotwise: CommandLine, tmp_path: Path) -> None:
    file, figures = tmp_path / "fastserve.json", tmp_path / "figures"
    names = ["v1-rate", "mlfq-quantum", "artifact"]
    options = f"--quick --requests 10 --jobs 1 --studies {','.join(names)} --runs {tmp_path / 'runs'}"
    ended = spotwise(*f"simulate paper fastserve {options} --json {file} --figures {figures}".split())
    assert ended.status == 0, ended.stderr
    for text in (
        "headline",
        "kinds of MLFQ by quantum ratio",
        "GPT-3 175B on 2 x 8 A100-40GB",
        "Zipf 1.5, prompts to 1024",
    ):
        assert text in ended.stdout
    document = orjson.loads(file.read_bytes())
    assert [study["name"] for study in document["studies"]] == names
    assert {path.stem for path in figures.iterdir()} == set(names)
    (artifact,) = [study for study in document["studies"] if study["name"] == "artifact"]
    point = artifact["points"][-1]
    assert (point["at"], point["line"]) == (4.0, "MLFQ, no preemption")
    assert set(point["jct_s"]) == set(point["jct_per_token_s"]) == {"mean", "p50", "p95", "p99"}
    (run,) = point["runs"]
    assert (run["case"]["rate"], run["case"]["seed"], run["case"]["queues"]["quantum_ratio"]) == (4.0, 0, 2.0)
    assert "mean JCT of FCFS over FastServe's, by rate" in {headline["name"] for headline in document["headlines"]}
    assert document["engines"]["OPT-13B on an A100-80GB"]["kv_tokens"] == 66_144


def test_limits_are_put_beside_those_of_the_published_simulator(spotwise: CommandLine, tmp_path: Path) -> None:
    folder, file = tmp_path / "profiles", tmp_path / "published.json"
    folder.mkdir()
    runs = ["as_shipped,code,Splitwise-AA,3,1,10,1192" + ",9.0" * 9 + ",False"]
    columns = ",".join(f"{metric}_p{percent}" for metric in ("ttft", "tbt", "e2e") for percent in (50, 90, 99))
    header = f"mode,workload,design,prompt_machines,token_machines,rate_rps,requests,{columns},all_slos_met"
    (folder / "splitwise_sim_replay.csv").write_text("\n".join([header, *runs]))
    arguments = f"simulate paper splitwise --data {tmp_path} --published-runs --no-headlines --jobs 1 --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "1 of 1 limits agree" in ended.stdout
    (cluster,) = orjson.loads(file.read_bytes())["published_runs"]["clusters"]
    assert (cluster["design"], cluster["published_breaks"], cluster["ours"]) == ("Splitwise-AA", 10.0, None)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("splitwise --published-runs", "--published-runs"),
        ("splitwise --data nowhere", "--data"),
        ("splitwise --no-headlines", "--no-headlines"),
        ("orca", "orca"),
        ("splitwise --requests 50", "--requests"),
        ("splitwise --studies v1-rate", "--studies"),
        ("fastserve --studies v2-rate", "--studies"),
        ("fastserve --seconds 5", "--seconds"),
        ("fastserve --step 5", "--step"),
        ("fastserve --decode-model honest", "--decode-model"),
        ("fastserve --no-headlines", "--no-headlines"),
        ("fastserve --published-runs", "--published-runs"),
        ("fastserve --requests 5", "--requests"),
        ("fastserve --data nowhere", "--data"),
    ],
)
def test_a_wrong_option_is_named(
    spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    monkeypatch.delenv("SPOTWISE_DATA", raising=False)
    ended = spotwise("simulate", "paper", *command.split())
    assert ended.status == 2, ended.stderr
    assert option in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_installation_without_the_studies_says_that_they_need_a_checkout() -> None:
    """`paper` is then no command, and the help says why; the other commands are there."""
    run = (
        "import sys; sys.path[:] = [each for each in sys.path if not each.endswith('/studies')]\n"
        "from spotwise.cli.__main__ import app\n"
        "app(['simulate', *sys.argv[1:]])"
    )

    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", run, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    shown = ended("--help").stdout
    assert "provision" in shown and "(paper) need a checkout" in shown
    assert ended("paper", "fastserve").returncode == 2


SPLITWISE = "simulate paper splitwise --quick --decode-model honest --jobs 1 --check"
FASTSERVE = "simulate paper fastserve --quick --requests 20 --jobs 1 --check"


def two_a_machine(case: Case) -> RunSummary:
    """Make up a run: a machine carries two requests a second, whatever it is."""
    return summary(case, holds=(case.rate or 0.0) <= 2.0 * case.split.machines)


@pytest.fixture
def made_up_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters are not simulated."""
    monkeypatch.setattr("spotwise.cli.simulate.progress.CLUSTERS", replace(CLUSTERS, run=two_a_machine))


@pytest.mark.usefixtures("made_up_runs")
def test_splitwise_fails_where_a_headline_differs(spotwise: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "splitwise.json"
    ended = spotwise(*SPLITWISE.split(), "--json", str(file))
    assert ended.status == 1
    document = orjson.loads(file.read_bytes())
    differing = [row["name"] for row in document["headlines"] if not row["ours"]["honest"]["close"]]
    assert 0 < len(differing) < len(document["headlines"])
    sentence = f"--check: {len(differing)} of {len(document['headlines'])} headlines differ: {differing[0]} (honest)"
    assert sentence in " ".join(ended.stderr.split())


@pytest.mark.usefixtures("made_up_runs")
def test_splitwise_ends_well_where_none_differs(spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of each decode model counts: one that differs by one model alone ends with 1."""
    monkeypatch.setattr(ClusterHeadline, "differs", lambda row, model: False)
    assert spotwise(*SPLITWISE.split()).status == 0
    monkeypatch.setattr(
        ClusterHeadline, "differs", lambda row, model: row.name.startswith("batch") and model == "published"
    )
    ended = spotwise(*SPLITWISE.split(), "--decode-model", "published")
    assert ended.status == 1
    assert "--check: 4 of 40 headlines differ: batch jobs" in " ".join(ended.stderr.split())


@pytest.mark.usefixtures("made_up_runs")
def test_splitwise_says_which_limits_rest_on_no_steady_state(spotwise: CommandLine) -> None:
    """Made-up runs have no latencies, so none is known to be steady."""
    said = " ".join(spotwise(*SPLITWISE.split()).stdout.split())
    assert "22 of 22 limits rest on runs without a steady state: requests arrive for 20 s" in said


def test_fastserve_fails_where_a_headline_differs(spotwise: CommandLine, tmp_path: Path) -> None:
    """Twenty jobs fill no queue, so that FCFS is as good as FastServe; where a paper's number is about ours nothing fails."""
    file = tmp_path / "fastserve.json"
    ended = spotwise(*f"{FASTSERVE} --studies v1-rate,mlfq-quantum --json {file}".split())
    assert ended.status == 1
    rows = orjson.loads(file.read_bytes())["headlines"]
    differing = [row["name"] for row in rows if row["close"] is False]
    assert len(differing) == 3
    assert f"--check: 3 of 4 headlines differ: {differing[0]}" in " ".join(ended.stderr.split())
    assert spotwise(*f"{FASTSERVE} --studies mlfq-quantum".split()).status == 0


def test_fastserve_without_a_headline_checks_nothing(spotwise: CommandLine) -> None:
    ended = spotwise(*f"{FASTSERVE} --studies artifact".split())
    assert ended.status == 1
    assert "--check: no headline was measured" in ended.stderr


def test_fastserve_says_what_reaches_no_steady_state(spotwise: CommandLine, tmp_path: Path) -> None:
    """In the report and in the file: 20 jobs a second apart are steady, and not those of a fifteenth of that."""
    file = tmp_path / "fastserve.json"
    said = " ".join(spotwise(*f"{FASTSERVE} --studies v1-rate --json {file}".split()).stdout.split())
    (study,) = orjson.loads(file.read_bytes())["studies"]
    steady = {(point["at"], point["line"]) for point in study["points"] if point["steady_state"]}
    assert (0.5, "FastServe") in steady
    assert (15.0, "FastServe") not in steady
    unsteady = len(study["points"]) - len(steady)
    assert f"v1-rate: {unsteady} of {len(study['points'])} points reach no steady state" in said
    assert "FCFS at 5, 10, 15;" in said
