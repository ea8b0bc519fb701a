"""`spotwise simulate paper … --check`: status 1 where a headline is not about the paper's; and what reaches no steady state."""

from __future__ import annotations

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
