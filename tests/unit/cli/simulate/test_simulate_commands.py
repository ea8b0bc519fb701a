"""`spotwise simulate`, on clusters so small that they take no time."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import BUILT_IN, MeasuredRange
from tests.unit.cli.builders import write_profile
from tests.unit.cli.command_line import CommandLine, RefusalOf, ReportOf

TINY = "--workload code --seconds 5 --jobs 1"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A recorded machine: `@machine.json` of commands."""
    return write_profile(tmp_path / "machine.json")


def write_trace(folder: Path, requests: Sequence[tuple[int, int, int]]) -> None:
    """Write `@mine.csv`: seconds, prompt and output tokens of each request."""
    lines = [f"2024-01-01 00:00:{second:02},{prompt},{output}\n" for second, prompt, output in requests]
    (folder / "mine.csv").write_text("".join(["TIMESTAMP,ContextTokens,GeneratedTokens\n", *lines]))


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_run_reports_all_its_figures(report_of: ReportOf) -> None:
    report = report_of(f"simulate run --design HA --machines 2,1 --rates 2 {TINY}")
    for heading in ("Splitwise-HA (2, 1)", "TTFT", "TBT", "E2E", "ITL", "prompt", "token", "hand-offs"):
        assert heading in report.text
    (run,) = report.document["runs"]
    assert (run["design"], run["prompt_machines"], run["token_machines"], run["rate"]) == ("Splitwise-HA", 2, 1, 2.0)
    assert run["requests"]["completed"] > 0
    assert set(run["slowdowns"]) == {"ttft", "tbt", "e2e"}
    assert run["slowdowns"]["ttft"]["p99"]["bound"] == 6.0
    assert run["pools"]["token"]["busy_time_by_tokens"][-1][1] == pytest.approx(1.0)


def test_a_trace_is_served_at_its_own_times(report_of: ReportOf, tmp_path: Path) -> None:
    write_trace(tmp_path, [(second, 500, 20) for second in range(30)])
    report = report_of("simulate run --design AA --machines 1,1 --trace @mine.csv --arrivals trace --jobs 1")
    (run,) = report.document["runs"]
    assert (run["workload"], run["arrivals"], run["rate"]) == ("mine", "trace", None)
    assert run["requests"]["completed"] == 30


@pytest.mark.parametrize(
    ("options", "share", "said"),
    [
        ("--arrivals trace", 0.9 * 48 / 64, "67.5% of the prompt tokens were found in prefix caches"),
        ("--arrivals trace --no-prefix-caching", None, ""),
        ("--rates 2 --seconds 5", None, "Nothing was found in prefix caches: random arrivals are of sizes alone"),
        (
            "--arrivals trace --decode-model published",
            None,
            "Nothing was found in prefix caches: the published simulator has none",
        ),
    ],
)
def test_equal_beginnings_of_prompts_are_found_again(
    report_of: ReportOf, tmp_path: Path, options: str, share: float | None, said: str
) -> None:
    """The report has the share of the prompt tokens; or why there is none, where the trace has hashes and they do not count."""
    line = '{{"timestamp": {}e3, "input_length": 64, "output_length": 5, "hash_ids": [7, 8, 9, {}]}}'
    (tmp_path / "chats.jsonl").write_text("\n".join(line.format(second, second) for second in range(10)))
    report = report_of(
        f"simulate run --design HH --machines 1,1 --trace @chats.jsonl --block-tokens 16 --jobs 1 {options}"
    )
    (run,) = report.document["runs"]
    assert run["cached_prompt_share"] == (None if share is None else pytest.approx(share))
    assert said in report.text
    assert ("prefix caches" in report.text) is bool(said)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_request_is_a_row(report_of: ReportOf, tmp_path: Path, jobs: int) -> None:
    """The runs of all rates are in one file, whose latencies are those of the report; nothing else is left in the folder."""
    rows = tmp_path / "rows" / "requests.csv"
    rows.parent.mkdir()
    command = f"simulate run --design HA --machines 2,1 --workload code --seconds 10 --rates 2,4 --seed 3 --jobs {jobs}"
    report = report_of(f"{command} --requests {rows}")
    assert f"requests written to {rows}".replace(" ", "") in report.text.replace(" ", "")
    requests = rows_of(rows)
    for run in report.document["runs"]:
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

    def without_clocks(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [run | {"wall_s": None} for run in runs]

    assert without_clocks(report.document["runs"]) == without_clocks(report_of(command).document["runs"])


def test_a_failed_request_is_reported_and_a_row_with_its_reason(report_of: ReportOf, tmp_path: Path) -> None:
    """The first one's reason is in the report and in the document."""
    write_profile(tmp_path / "machine.json", kv_tokens=4096)
    write_trace(tmp_path, [(1, 20_000, 9), (2, 50, 1)])
    command = "simulate run --profile @machine.json --machines 1 --trace @mine.csv --arrivals trace --jobs 1"
    report = report_of(f"{command} --requests {tmp_path / 'requests.csv'}")
    assert "1 requests failed, the first of them because never_fits" in report.text
    (run,) = report.document["runs"]
    assert run["requests"]["failed"] == 1
    assert run["requests"]["first_failure"].startswith("never_fits")
    failed, completed = sorted(rows_of(tmp_path / "requests.csv"), key=lambda each: float(each["arrival_s"]))
    assert (failed["prompt_tokens"], failed["e2e_s"], failed["rate"]) == ("20000", "", "")
    assert failed["failure"].startswith("never_fits: ")
    assert (completed["failure"], completed["tbt_s"]) == ("", "")
    assert float(completed["ttft_s"]) == float(completed["e2e_s"])


@pytest.mark.parametrize(("machines", "homes"), [("2,1", {"prompt", "token"}), ("3", {"mixed"})])
def test_a_recorded_machine_is_simulated(report_of: ReportOf, profile: Path, machines: str, homes: set[str]) -> None:
    """As many machines as requested, in two pools or mixed, compared with a single one and with the given price."""
    report = report_of(f"simulate run --profile {profile} --machines {machines} --price 3.5 --rates 2 {TINY}")
    assert f"Recorded ({', '.join(machines.split(','))})" in report.text
    (run,) = report.document["runs"]
    assert set(run["pools"]) <= homes
    assert run["price_per_hour"] == 10.5
    assert (run["design"], run["model"], run["decode_model"]) == ("Recorded", BUILT_IN.name, None)
    assert 0.9 < run["slowdowns"]["ttft"]["p50"]["ours"] < 2.0
    assert "DGX-A100" not in report.text


def test_time_beyond_the_profile_is_marked(report_of: ReportOf, tmp_path: Path) -> None:
    """In the report and in the file; a profile that reaches far enough has a share of 0, one that does not say has none."""

    def run(measured: MeasuredRange | None) -> tuple[Any, str]:
        write_profile(tmp_path / "machine.json", replace(BUILT_IN, name="mine", measured=measured))
        report = report_of(f"simulate run --profile @machine.json --machines 2 --rates 2 {TINY}")
        (document,) = report.document["runs"]
        return document["beyond_profile"], report.text

    beyond, report = run(MeasuredRange(64, 32.0, 2, 80.0))
    (own,) = beyond["machines"]
    assert (own["kind"], own["measured"]["prompt_tokens"]) == ("mine", 64)
    assert 0.9 < beyond["share"] == own["share"] <= 1.0
    assert own["shares"]["decode_context"] <= own["share"]
    assert "of the iterations' time lies beyond what the profile measured" in report
    beyond, report = run(MeasuredRange(100_000, 100_000.0, 1000, 100_000.0))
    assert (beyond["share"], beyond["machines"][0]["shares"]) == (0.0, {})
    assert "the profile" not in report.lower()
    beyond, report = run(None)
    assert beyond is None
    assert "The profile does not say how far it was measured" in report


@pytest.mark.parametrize("machines", ["--design HH", "--profile @machine.json"], ids=["design", "recorded"])
@pytest.mark.parametrize(("rates", "name"), [("1", "batches.svg"), ("1,2", "latencies.png"), ("1,2", "latencies.svg")])
def test_a_run_is_drawn(
    report_of: ReportOf, profile: Path, tmp_path: Path, machines: str, rates: str, name: str
) -> None:
    plot = tmp_path / "plots" / name
    report_of(f"simulate run {machines} --machines 1,1 --rates {rates} {TINY} --plot {plot}")
    assert plot.stat().st_size > 1000
    if plot.suffix == ".svg":
        assert ("Recorded" in plot.read_text()) is ("profile" in machines)


def test_provisioning_finds_the_fewest_machines(report_of: ReportOf) -> None:
    """Design by design, the best first; with every split that was tried in the file."""
    found = report_of(
        f"simulate provision --objective machines --rate 2 --designs Baseline-H100,HH --most 4,2 {TINY}"
    ).document
    assert set(found["designs"]) == {"Baseline-H100", "Splitwise-HH"}
    assert found["designs"]["Splitwise-HH"]["token machines"] >= 1
    assert all("holds" in tried for tried in found["tried"]["Splitwise-HH"])


def test_provisioning_finds_what_a_budget_carries(report_of: ReportOf) -> None:
    found = report_of(f"simulate provision --objective throughput --max-machines 2 --designs HH --step 2 {TINY}")
    assert "Splitwise-HH" in found.text
    assert "per $/h" in found.text


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


def test_a_mesh_that_handed_nothing_over_is_simulated_mixed(
    report_of: ReportOf, refusal_of: RefusalOf, tmp_path: Path
) -> None:
    """A mesh without hand-offs has no measured link cost, so two pools are refused and mixed workers are simulated."""
    write_profile(tmp_path / "machine.json", link=None)
    report_of(f"simulate run --profile @machine.json --machines 3 --rates 2 {TINY}")
    refusal = refusal_of(f"simulate run --profile @machine.json --machines 2,1 --rates 2 {TINY}")
    assert "--machines" in refusal
    assert "hand-offs" in refusal


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
        ("run --price 3", "--price"),
        ("run --profile nowhere.json --machines 2", "--profile"),
        ("run --profile @machine.json", "--machines"),
        ("run --profile @machine.json --machines 0,2", "--machines"),
        ("run --profile @machine.json --machines 2 --design HA", "--design"),
        ("run --profile @machine.json --machines 2 --model llama2-70b", "--model"),
        ("run --profile @machine.json --machines 2 --decode-model published", "--decode-model"),
        ("run --requests rows.txt", "ends neither in .csv nor in .parquet"),
        ("run --requests rows.parquet", "`pip install pyarrow`"),
        ("provision --objective cost", "--rate"),
        ("provision --objective cost --rate 2 --profile @machine.json", "--profile"),
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
    refusal_of: RefusalOf, profile: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    """Also one without an effect: a recorded machine has its own model and times, and only it has a price of the user's."""
    monkeypatch.delenv("SPOTWISE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert option in refusal_of(f"simulate {command}")


@pytest.mark.parametrize("link_s", [0.0, 0.4, 2.0])
def test_a_newcomer_is_not_sent_behind_a_long_prompt(report_of: ReportOf, tmp_path: Path, link_s: float) -> None:
    """One prompt and one token machine, one word, 7,000 tokens and three seconds later 1,000, as slow as a laptop; a first
    hand-off that took seconds is no reason to wait for half a minute.
    """
    cost = LinearIterationCost(0.5, prompt_token_s=2.9e-3, prompt_context_s=2e-7, decode_s=1e-3, decode_context_s=0.0)
    write_profile(
        tmp_path / "machine.json", replace(BUILT_IN, iteration=cost, link=LinkCost(link_s, 1e9), kv_tokens=16384)
    )
    write_trace(tmp_path, [(0, 20, 8), (10, 7000, 8), (13, 1000, 8)])
    command = "simulate run --profile @machine.json --machines 1,1 --trace @mine.csv --arrivals trace --jobs 1"
    report_of(f"{command} --requests {tmp_path / 'requests.csv'}")
    found = {int(row["prompt_tokens"]): row for row in rows_of(tmp_path / "requests.csv")}
    assert found[1000]["prompt_machine"] != found[7000]["prompt_machine"]
    assert float(found[1000]["finished_s"]) < float(found[7000]["finished_s"])
