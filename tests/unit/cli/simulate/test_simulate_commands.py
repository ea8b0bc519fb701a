"""`spotwise simulate`, on clusters so small that they take no time."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN, MeasuredRange
from spotwise.files.cost_profile import profile_as_dict
from tests.unit.cli.command_line import CommandLine

TINY = "--workload code --seconds 5 --jobs 1"


def test_a_run_reports_all_its_figures(spotwise: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    ended = spotwise(*f"simulate run --design HA --machines 2,1 --rates 2 {TINY} --json {file}".split())
    assert ended.status == 0, ended.stderr
    for heading in ("Splitwise-HA (2, 1)", "TTFT", "TBT", "E2E", "ITL", "prompt", "token", "hand-offs"):
        assert heading in ended.stdout
    (run,) = orjson.loads(file.read_bytes())["runs"]
    assert (run["design"], run["prompt_machines"], run["token_machines"], run["rate"]) == ("Splitwise-HA", 2, 1, 2.0)
    assert run["requests"]["completed"] > 0
    assert set(run["slowdowns"]) == {"ttft", "tbt", "e2e"}
    assert run["slowdowns"]["ttft"]["p99"]["bound"] == 6.0
    assert run["pools"]["token"]["busy_time_by_tokens"][-1][1] == pytest.approx(1.0)


def test_machines_may_leave(spotwise: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    arguments = f"simulate run --design HH --machines 2,3 --rates 4 {TINY} --leaving 1@2 --notice 1 --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "1 machine left: " in ended.stdout
    (run,) = orjson.loads(file.read_bytes())["runs"]
    assert run["requests"]["failed"] == run["recomputed"] == 0
    assert isinstance(run["moved"], int)


def test_a_trace_is_served_at_its_own_times(spotwise: CommandLine, tmp_path: Path) -> None:
    trace, file = tmp_path / "mine.csv", tmp_path / "run.json"
    lines = "".join(f"2024-01-01 00:00:{second:02},500,20\n" for second in range(30))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines)
    arguments = f"simulate run --design AA --machines 1,1 --trace {trace} --arrivals trace --jobs 1 --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    (run,) = orjson.loads(file.read_bytes())["runs"]
    assert (run["workload"], run["arrivals"], run["rate"]) == ("mine", "trace", None)
    assert run["requests"]["completed"] == 30


def test_equal_beginnings_of_prompts_are_found_again(spotwise: CommandLine, tmp_path: Path) -> None:
    """The report has the share of the prompt tokens; or why there is none, where the trace has hashes and they do not count."""
    trace, file = tmp_path / "chats.jsonl", tmp_path / "run.json"
    line = '{{"timestamp": {}e3, "input_length": 64, "output_length": 5, "hash_ids": [7, 8, 9, {}]}}'
    trace.write_text("\n".join(line.format(second, second) for second in range(10)))
    command = f"simulate run --design HH --machines 1,1 --trace {trace} --block-tokens 16 --jobs 1 --json {file}"

    def shares(more: str) -> tuple[float | None, str]:
        ended = spotwise(*f"{command} {more}".split())
        assert ended.status == 0, ended.stderr
        (run,) = orjson.loads(file.read_bytes())["runs"]
        return run["cached_prompt_share"], " ".join(ended.stdout.split())

    share, report = shares("--arrivals trace")
    assert share == pytest.approx(0.9 * 48 / 64)
    assert "67.5% of the prompt tokens were found in prefix caches" in report
    share, report = shares("--arrivals trace --no-prefix-caching")
    assert share is None
    assert "prefix caches" not in report
    share, report = shares("--rates 2 --seconds 5")
    assert share is None
    assert "Nothing was found in prefix caches: random arrivals are of sizes alone" in report
    share, report = shares("--arrivals trace --decode-model published")
    assert share is None
    assert "Nothing was found in prefix caches: the published simulator has none" in report


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_request_is_a_row(spotwise: CommandLine, tmp_path: Path, jobs: int) -> None:
    """The runs of all rates are in one file, whose latencies are those of the report; nothing else is left in the folder."""
    rows, file = tmp_path / "rows" / "requests.csv", tmp_path / "run.json"
    rows.parent.mkdir()
    command = f"simulate run --design HA --machines 2,1 --workload code --seconds 10 --rates 2,4 --seed 3 --jobs {jobs}"
    ended = spotwise(*f"{command} --requests {rows} --json {file}".split())
    assert ended.status == 0, ended.stderr
    assert f"requests written to {rows}" in ended.stdout.replace("\n", "")
    requests = list(csv.DictReader(rows.read_text().splitlines()))
    for run in orjson.loads(file.read_bytes())["runs"]:
        own = [each for each in requests if float(each["rate"]) == run["rate"]]
        assert len(own) == run["requests"]["completed"]
        for metric in ("ttft", "e2e"):
            mean = sum(float(each[f"{metric}_s"]) for each in own) / len(own)
            assert mean == pytest.approx(run["latencies_s"][metric]["mean"])
        assert [float(each["finished_s"]) for each in own] == sorted(float(each["finished_s"]) for each in own)
        assert max(float(each["finished_s"]) for each in own) == run["ended_s"]
    first = requests[0]
    assert (first["seed"], first["priority"], first["cached_tokens"], first["failure"]) == ("3", "0", "0", "")
    assert float(first["arrival_s"]) + float(first["e2e_s"]) == pytest.approx(float(first["finished_s"]))
    assert {each["prompt_machine"] for each in requests} <= {"m0", "m1", "m2"}
    assert list(rows.parent.iterdir()) == [rows]
    assert orjson.loads(file.read_bytes())["runs"] == _as_without_rows(spotwise, command, file)


def _as_without_rows(spotwise: CommandLine, command: str, file: Path) -> object:
    """The same runs, with the real seconds of those before."""
    walls = [run["wall_s"] for run in orjson.loads(file.read_bytes())["runs"]]
    assert spotwise(*f"{command} --json {file}".split()).status == 0
    return [run | {"wall_s": wall} for run, wall in zip(orjson.loads(file.read_bytes())["runs"], walls, strict=True)]


def test_a_failed_request_is_a_row_with_its_reason(spotwise: CommandLine, tmp_path: Path) -> None:
    trace, rows = tmp_path / "mine.csv", tmp_path / "requests.csv"
    trace.write_text("time,input_tokens,output_tokens\n1,200000,9\n2,50,1\n")
    command = f"simulate run --design Baseline-H100 --machines 1 --trace {trace} --arrivals trace --jobs 1"
    ended = spotwise(*f"{command} --requests {rows}".split())
    assert ended.status == 0, ended.stderr
    failed, completed = sorted(csv.DictReader(rows.read_text().splitlines()), key=lambda each: float(each["arrival_s"]))
    assert (failed["prompt_tokens"], failed["e2e_s"], failed["rate"]) == ("200000", "", "")
    assert failed["failure"].startswith("never_fits: ")
    assert (completed["failure"], completed["tbt_s"]) == ("", "")
    assert float(completed["ttft_s"]) == float(completed["e2e_s"])


def test_a_file_of_requests_that_cannot_be_written_is_refused(
    spotwise: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is simulated; Parquet without pyarrow says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name, why in (("rows.txt", "ends neither in .csv nor in .parquet"), ("rows.parquet", "`pip install pyarrow`")):
        ended = spotwise(*f"simulate run --requests {tmp_path / name}".split())
        assert ended.status == 2
        assert why in " ".join(ended.stderr.split())


def test_the_reason_of_failed_requests_is_reported(spotwise: CommandLine, tmp_path: Path) -> None:
    trace, file = tmp_path / "mine.csv", tmp_path / "run.json"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:01,20000,9\n2024-01-01 00:00:02,50,9\n")
    profile = tmp_path / "machine.json"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN) | {"kv_tokens": 4096}))
    arguments = f"simulate run --profile {profile} --machines 1 --trace {trace} --arrivals trace --jobs 1 --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "1 requests failed, the first of them because never_fits" in " ".join(ended.stdout.split())
    (run,) = orjson.loads(file.read_bytes())["runs"]
    assert run["requests"]["failed"] == 1
    assert run["requests"]["first_failure"].startswith("never_fits")


@pytest.mark.parametrize(("machines", "homes"), [("2,1", {"prompt", "token"}), ("3", {"mixed"})])
def test_a_recorded_machine_is_simulated(spotwise: CommandLine, tmp_path: Path, machines: str, homes: set[str]) -> None:
    """As many machines as requested, in two pools or mixed, compared with a single one and with the given price."""
    profile, file = tmp_path / "machine.json", tmp_path / "run.json"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    arguments = f"simulate run --profile {profile} --machines {machines} --price 3.5 --rates 2 {TINY} --json {file}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert f"Recorded ({', '.join(machines.split(','))})" in ended.stdout
    (run,) = orjson.loads(file.read_bytes())["runs"]
    assert set(run["pools"]) <= homes
    assert run["price_per_hour"] == 10.5
    assert (run["design"], run["model"], run["decode_model"]) == ("Recorded", BUILT_IN.name, None)
    assert 0.9 < run["slowdowns"]["ttft"]["p50"]["ours"] < 2.0
    assert "DGX-A100" not in ended.stdout


def test_time_beyond_the_profile_is_marked(spotwise: CommandLine, tmp_path: Path) -> None:
    """In the report and in the file; a profile that reaches far enough has a share of 0, one that does not say has none."""
    profile, file = tmp_path / "machine.json", tmp_path / "run.json"
    command = f"simulate run --profile {profile} --machines 2 --rates 2 {TINY} --json {file}"

    def run(measured: MeasuredRange | None) -> tuple[object, str]:
        profile.write_bytes(orjson.dumps(profile_as_dict(replace(BUILT_IN, name="mine", measured=measured))))
        ended = spotwise(*command.split())
        assert ended.status == 0, ended.stderr
        (document,) = orjson.loads(file.read_bytes())["runs"]
        return document["beyond_profile"], " ".join(ended.stdout.split())

    beyond, report = run(MeasuredRange(64, 32.0, 2, 80.0))
    assert isinstance(beyond, dict)
    (own,) = beyond["machines"]
    assert (own["kind"], own["measured"]["prompt_tokens"]) == ("mine", 64)
    assert 0.9 < beyond["share"] == own["share"] <= 1.0
    assert own["shares"]["decode_context"] <= own["share"]
    assert "of the iterations' time lies beyond what the profile measured" in report
    beyond, report = run(MeasuredRange(100_000, 100_000.0, 1000, 100_000.0))
    assert isinstance(beyond, dict)
    assert (beyond["share"], beyond["machines"][0]["shares"]) == (0.0, {})
    assert "the profile" not in report.lower()
    beyond, report = run(None)
    assert beyond is None
    assert "The profile does not say how far it was measured" in report


@pytest.mark.parametrize(("rates", "name"), [("1", "batches.svg"), ("1,2", "latencies.png")])
def test_a_run_is_drawn(spotwise: CommandLine, tmp_path: Path, rates: str, name: str) -> None:
    plot = tmp_path / "plots" / name
    ended = spotwise(*f"simulate run --design HH --machines 1,1 --rates {rates} {TINY} --plot {plot}".split())
    assert ended.status == 0, ended.stderr
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize("rates", ["1", "1,2"])
def test_recorded_machines_are_drawn(spotwise: CommandLine, tmp_path: Path, rates: str) -> None:
    profile, plot = tmp_path / "machine.json", tmp_path / "drawn.svg"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    arguments = f"simulate run --profile {profile} --machines 1,1 --rates {rates} {TINY} --plot {plot}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "Recorded" in plot.read_text()


def test_provisioning_finds_the_fewest_machines(spotwise: CommandLine, tmp_path: Path) -> None:
    """Design by design, the best first; with every split that was tried in the file."""
    file = tmp_path / "provision.json"
    arguments = (
        f"simulate provision --objective machines --rate 2 --designs Baseline-H100,HH --most 4,2 {TINY} --json {file}"
    )
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    document = orjson.loads(file.read_bytes())
    assert set(document["designs"]) == {"Baseline-H100", "Splitwise-HH"}
    assert document["designs"]["Splitwise-HH"]["token machines"] >= 1
    assert all("holds" in tried for tried in document["tried"]["Splitwise-HH"])


def test_provisioning_finds_what_a_budget_carries(spotwise: CommandLine) -> None:
    arguments = f"simulate provision --objective throughput --max-machines 2 --designs HH --step 2 {TINY}"
    ended = spotwise(*arguments.split())
    assert ended.status == 0, ended.stderr
    assert "Splitwise-HH" in ended.stdout
    assert "per $/h" in ended.stdout


def test_a_stopped_search_resumes(spotwise: CommandLine, tmp_path: Path) -> None:
    """A repeated search reuses the runs in the file, each once, whatever the number of processes."""
    runs = tmp_path / "kept" / "runs"
    arguments = "simulate provision --objective machines --rate 2 --designs HH --most 4,2 --workload code --seconds 5"
    arguments += f" --runs {runs}"
    first = spotwise(*arguments.split(), "--jobs", "2")
    assert first.status == 0, first.stderr
    kept = runs.read_bytes()
    assert kept.count(b"\n") > 2
    again = spotwise(*arguments.split(), "--jobs", "1")
    assert again.stdout == first.stdout
    assert runs.read_bytes() == kept


def test_a_mesh_that_handed_nothing_over_is_simulated_mixed(spotwise: CommandLine, tmp_path: Path) -> None:
    """A mesh without hand-offs has no measured link cost, so two pools are refused and mixed workers are simulated."""
    profile = tmp_path / "machine.json"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN) | {"link": None}))
    mixed = spotwise(*f"simulate run --profile {profile} --machines 3 --rates 2 {TINY}".split())
    assert mixed.status == 0, mixed.stderr
    split = spotwise(*f"simulate run --profile {profile} --machines 2,1 --rates 2 {TINY}".split())
    assert split.status != 0
    assert "--machines" in split.stderr
    assert "hand-offs" in split.stderr


@pytest.mark.parametrize(
    "command",
    [
        "run --profile {} --machines 2 --model llama2-70b",
        "run --profile {} --machines 2 --decode-model published",
        "run --profile {} --machines 2 --design HA",
        "run --price 3",
        "provision --objective cost --rate 2 --profile {}",
    ],
)
def test_options_without_effect_are_refused(spotwise: CommandLine, tmp_path: Path, command: str) -> None:
    """A recorded machine has its own model and times, and only it has a price of the user's; no recorded one is bought."""
    profile = tmp_path / "machine.json"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    ended = spotwise("simulate", *command.format(profile).split())
    assert ended.status == 2
    assert command.split("--")[-1].split()[0] in ended.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("run --design XX", "--design"),
        ("run --design HA --machines 40", "--machines"),
        ("run --design A100 --machines 20,20", "--machines"),
        ("run --design HA --machines 0,1", "--machines"),
        ("run --rates 5,x", "--rates"),
        ("run --rates 0", "--rates"),
        ("run --model gpt-5", "--model"),
        ("run --workload poems", "--workload"),
        ("run --arrivals trace", "--arrivals"),
        ("run --decode-model guessed", "--decode-model"),
        ("run --plot drawing.txt", "--plot"),
        ("run --leaving 4", "--leaving"),
        ("run --leaving 400@10", "--leaving"),
        ("run --notice 5", "--notice"),
        ("run --profile nowhere.json --machines 2", "--profile"),
        ("provision --objective cost", "--rate"),
        ("provision --objective throughput --rate 5", "--rate"),
        ("provision --objective throughput", "--max-cost"),
        ("provision --objective throughput --max-cost 5 --max-power 5", "--max-cost"),
        ("provision --objective throughput --max-cost 5 --designs HH", "--max-cost"),
        ("provision --objective cost --rate 5 --max-power 7", "--max-power"),
        ("provision --objective cost --rate 5 --designs HH,XX", "--design"),
        ("provision --objective cost --rate 5 --most 7", "--most"),
        ("provision --objective cost --rate 5 --cluster nowhere.toml", "--cluster"),
    ],
)
def test_a_wrong_option_is_named(
    spotwise: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    monkeypatch.delenv("SPOTWISE_DATA", raising=False)
    ended = spotwise("simulate", *command.split())
    assert ended.status == 2, ended.stderr
    assert option in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_file_that_is_no_trace_is_reported(spotwise: CommandLine, tmp_path: Path) -> None:
    """A file that is no trace ends the command with status 2 and one sentence with the line."""
    trace = tmp_path / "mine.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,0,20\n")
    ended = spotwise("simulate", "run", "--trace", str(trace), "--jobs", "1")
    assert ended.status == 2
    assert "line 2: ContextTokens is '0'" in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("options", "named"),
    [("--design HA --machines 2", "--design"), ("", "--machines"), ("--machines 0,2", "--machines")],
)
def test_of_a_recorded_machine_only_the_number_is_given(
    spotwise: CommandLine, tmp_path: Path, options: str, named: str
) -> None:
    profile = tmp_path / "machine.json"
    profile.write_bytes(orjson.dumps(profile_as_dict(BUILT_IN)))
    ended = spotwise("simulate", "run", "--profile", str(profile), *options.split())
    assert ended.status == 2, ended.stderr
    assert named in ended.stderr


@pytest.mark.parametrize("link_s", [0.0, 0.4, 2.0])
def test_a_newcomer_is_not_sent_behind_a_long_prompt(spotwise: CommandLine, tmp_path: Path, link_s: float) -> None:
    """One prompt and one token machine, one word, 7,000 tokens and three seconds later 1,000, as slow as a laptop; a first
    hand-off that took seconds is no reason to wait for half a minute.
    """
    cost = LinearIterationCost(0.5, prompt_token_s=2.9e-3, prompt_context_s=2e-7, decode_s=1e-3, decode_context_s=0.0)
    mine = replace(BUILT_IN, iteration=cost, link=LinkCost(link_s, 1e9), kv_tokens=16384)
    profile, trace, file = (tmp_path / name for name in ("profile.json", "mine.csv", "requests.csv"))
    profile.write_bytes(orjson.dumps(profile_as_dict(mine)))
    sizes = ((0, 20), (10, 7000), (13, 1000))
    lines = "".join(f"2024-01-01 00:00:{second:02},{tokens},8\n" for second, tokens in sizes)
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines)
    arguments = f"simulate run --profile {profile} --machines 1,1 --trace {trace} --arrivals trace --jobs 1"
    ended = spotwise(*arguments.split(), "--requests", str(file))
    assert ended.status == 0, ended.stderr
    with file.open() as rows:
        found = {int(row["prompt_tokens"]): row for row in csv.DictReader(rows)}
    assert found[1000]["prompt_machine"] != found[7000]["prompt_machine"]
    assert float(found[1000]["finished_s"]) < float(found[7000]["finished_s"])
