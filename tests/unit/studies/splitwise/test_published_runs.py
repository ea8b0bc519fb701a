"""Limits and latencies beside those of the published simulator."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.loads.workload import ArrivalKind
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.metrics import Verdict
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import METRICS, PERCENTS
from spotwise.simulator.searches.parallel import drive
from spotwise.studies.splitwise.published_runs import (
    Comparison,
    PublishedCluster,
    PublishedRun,
    compare,
    read_published_runs,
)
from tests.unit.simulator.runs.summaries import Oracle, case, summary

HEADER = (
    "mode,workload,design,prompt_machines,token_machines,rate_rps,requests,ttft_p50,ttft_p90,ttft_p99,"
    "tbt_p50,tbt_p90,tbt_p99,e2e_p50,e2e_p90,e2e_p99,all_slos_met\n"
)
BROKEN = Verdict(dict.fromkeys(("ttft", "tbt", "e2e"), ((9.0, 2.0),) * 3), 0)
CLUSTER = PublishedCluster(DecodeModel.PUBLISHED, "conv", "Splitwise-HH", Split(25, 15))


def run(rate: float, *, holds: bool) -> PublishedRun:
    return PublishedRun(rate, 100, {"ttft": (1, 1, 1), "tbt": (1, 1, 1 if holds else 5), "e2e": (1, 1, 1)})


def test_runs_are_read_by_cluster(tmp_path: Path) -> None:
    """Runs are sorted by rate; a baseline's machines are counted once, and a reached bound counts as broken."""
    path = tmp_path / "runs.csv"
    path.write_text(
        HEADER
        + "as_shipped,conv,Splitwise-HH,25,15,130,15727,0.61,0.9,1.3,1.37,1.65,2.04,1.34,1.61,1.96,False\n"
        + "as_shipped,conv,Splitwise-HH,25,15,120,14468,0.61,0.9,1.3,1.0,1.2,2.0,1.0,1.2,1.9,True\n"
        + "decode_by_batch,conv,Baseline-H100,40,40,90,10869,0.6,0.8,1.1,1.25,1.2,1.5,1.0,1.2,1.4,False\n"
    )
    runs = read_published_runs(path)
    baseline = PublishedCluster(DecodeModel.BY_BATCH, "conv", "Baseline-H100", Split(40))
    assert list(runs) == [CLUSTER, baseline]
    assert [(read.rate, read.requests, read.holds) for read in runs[CLUSTER]] == [
        (120, 14468, True),
        (130, 15727, False),
    ]
    assert [read.holds for read in runs[baseline]] == [False]
    assert {cluster.model for cluster in runs} == {"bloom-176b"}


def test_a_file_may_name_the_language_model(tmp_path: Path) -> None:
    """Without a column of models the runs are the published ones, of BLOOM-176B."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "model," + HEADER + "llama2-70b,as_shipped,conv,Splitwise-HH,25,15,130,15727" + ",1" * 9 + ",True\n"
    )
    (cluster,) = read_published_runs(path)
    assert cluster == replace(CLUSTER, model="llama2-70b")
    assert cluster.case(None, None).model == "llama2-70b"


@pytest.mark.parametrize("what", ["as_dreamt,conv,Splitwise-HH", "as_shipped,poems,Splitwise-HH", "as_shipped,conv,XX"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + f"{what},25,15,130,1,1,1,1,1,1,1,1,1,1,False\n")
    with pytest.raises(ProfileError, match="line 2"):
        read_published_runs(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_published_runs(tmp_path / "absent.csv")


@pytest.mark.parametrize("ours", [0, 30, 35, 40, 55, 60, 65, 70, 80, 90, 100])
def test_our_limit_is_found_among_theirs(ours: float) -> None:
    published = [run(40, holds=True), run(60, holds=True), run(80, holds=False)]
    oracle = Oracle(lambda case: (case.rate or 0.0) <= ours)
    search = compare(CLUSTER, published, None, None)
    found = drive({"": search}, 1, run=oracle.run)[""]
    assert (found.holds, found.breaks) == (60, 80)
    assert found.ours == (None if ours < 30 else min(ours, 90))
    assert {case.split for case in oracle.cases} == {CLUSTER.split}
    assert {case.workload.kind for case in oracle.cases} == {ArrivalKind.PUBLISHED}


@pytest.mark.parametrize(
    ("holds", "breaks", "ours", "agrees"),
    [
        (60, 70, 60, True),
        (60, 70, 70, True),
        (60, 70, 65, True),
        (60, 70, 55, True),
        (60, 70, 50, False),
        (60, 70, 75, False),
        (60, 70, 80, False),
        (60, 70, 40, False),
        (60, 80, 80, True),  # theirs may be 70
        (None, 60, 60, True),  # theirs may be 50
        (None, 60, None, True),
        (None, 60, 70, False),
        (60, None, 200, True),  # whether theirs ever failed is unknown
        (60, None, None, False),
    ],
)
def test_limits_agree_within_half_a_step(
    holds: float | None, breaks: float | None, ours: float | None, agrees: bool
) -> None:
    assert Comparison(holds, breaks, ours, ()).agrees is agrees


def test_a_run_deviates_by_its_worst_figure() -> None:
    """Every latency is compared with the published one, at the rates at which the published objectives hold."""
    ours = summary(case(rate=60.0), holds=True)
    verdict = Verdict({"ttft": ((1.1, 2),) * 3, "tbt": ((1.0, 2),) * 3, "e2e": ((0.8, 2),) * 3}, 0)
    deviations = run(60, holds=True).deviations(replace(ours, verdict=verdict))
    assert len(deviations) == 9
    assert (deviations["ttft p90"], deviations["tbt p99"], deviations["e2e p50"]) == pytest.approx((0.1, 0.0, -0.2))

    def deviating(of: Case) -> RunSummary:
        return replace(summary(of, holds=(of.rate or 0) <= 60), verdict=verdict if (of.rate or 0) <= 60 else BROKEN)

    published = [run(60, holds=True), run(70, holds=False)]
    found = drive({"": compare(CLUSTER, published, None, None)}, 1, run=deviating)[""]
    assert found.deviation == pytest.approx(0.2)


RUNS = Path(__file__).parent / "data" / "llama2_70b_runs.csv"
SECONDS = 40.0
FIGURES = [f"{metric}_p{percent}" for metric in METRICS for percent in PERCENTS]
#: Runs of a second or less; the others take a minute together.
SHORT = {
    ("Baseline-A100", "code", 15.0),
    ("Baseline-A100", "conv", 30.0),
    ("Baseline-H100", "code", 20.0),
    ("Splitwise-HA", "code", 30.0),
    ("Splitwise-AA", "code", 40.0),
}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of the published simulator; `seconds` by figure."""

    cluster: PublishedCluster
    run: PublishedRun
    seconds: dict[str, float]

    @property
    def is_short(self) -> bool:
        return (self.cluster.design, self.cluster.workload, self.run.rate) in SHORT

    @property
    def label(self) -> str:
        split = self.cluster.split
        return f"{self.cluster.design}-{split.prompt}-{split.token}-{self.cluster.workload}-{self.run.rate:g}"


def recorded() -> list[RecordedRun]:
    with RUNS.open(newline="") as file:
        seconds = {
            (line["design"], line["prompt_machines"], line["workload"], float(line["rate_rps"])): {
                figure: float(line[f"{figure}_s"]) for figure in FIGURES
            }
            for line in csv.DictReader(file)
        }
    return [
        RecordedRun(cluster, run, seconds[cluster.design, str(cluster.split.prompt), cluster.workload, run.rate])
        for cluster, runs in read_published_runs(RUNS).items()
        for run in runs
    ]


@pytest.mark.parametrize(
    "recorded_run",
    [pytest.param(each, id=each.label, marks=() if each.is_short else pytest.mark.long) for each in recorded()],
)
def test_latencies_are_the_published_simulators(recorded_run: RecordedRun) -> None:
    """Every percentile is within 5 % of the recorded one, those of baselines within 2 %; the same objectives hold."""
    cluster, published = recorded_run.cluster, recorded_run.run
    ours = simulate(replace(cluster.case(None, None), rate=published.rate, seconds=SECONDS))
    assert (cluster.model, cluster.decode_model) == ("llama2-70b", DecodeModel.PUBLISHED)
    assert ours.completed == published.requests
    latencies = {
        f"{metric}_p{percent}": ours.latencies_s[metric][f"p{percent}"] for metric in METRICS for percent in PERCENTS
    }
    assert latencies == pytest.approx(recorded_run.seconds, rel=0.02 if cluster.split.token == 0 else 0.05)
    assert ours.verdict.holds is published.holds


def test_recorded_runs_are_of_all_kinds() -> None:
    """Both workloads on clusters of 20 and 40 machines, mixed and split; some beyond what a cluster carries."""
    runs = recorded()
    assert {each.cluster.split.machines for each in runs} == {20, 40}
    assert len({(each.cluster.workload, each.cluster.split.token > 0) for each in runs}) == 4
    assert {each.run.holds for each in runs} == {True, False}
    assert sum(each.is_short for each in runs) == len(SHORT)
