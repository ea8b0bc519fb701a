"""Llama2-70B as published: latencies beside the recorded ones of the published simulator, of the same requests."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.slo import METRICS, PERCENTS
from spotwise.studies.splitwise.published_runs import PublishedCluster, PublishedRun, read_published_runs

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
