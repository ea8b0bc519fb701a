"""Limits beside those of the published simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.costs.profiles import ProfileError
from spotwise.simulator.runs.designs import Split
from spotwise.simulator.runs.parallel import drive
from spotwise.simulator.runs.workload import ClusterWorkload
from spotwise.simulator.splitwise.published_runs import (
    Comparison,
    PublishedCluster,
    PublishedRun,
    compare,
    read_published_runs,
)
from tests.unit.simulator.runs.summaries import Oracle

HEADER = (
    "mode,workload,design,prompt_machines,token_machines,rate_rps,requests,ttft_p50,ttft_p90,ttft_p99,"
    "tbt_p50,tbt_p90,tbt_p99,e2e_p50,e2e_p90,e2e_p99,all_slos_met\n"
)
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


@pytest.mark.parametrize("what", ["as_dreamt,conv,Splitwise-HH", "as_shipped,poems,Splitwise-HH", "as_shipped,conv,XX"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, what: str) -> None:
    """A malformed file is refused with the number of its line, and an absent one with its name."""
    path = tmp_path / "runs.csv"
    path.write_text(HEADER + f"{what},25,15,130,1,1,1,1,1,1,1,1,1,1,False\n")
    with pytest.raises(ProfileError, match="line 2"):
        read_published_runs(path)
    with pytest.raises(ProfileError, match="cannot be read"):
        read_published_runs(tmp_path / "absent.csv")


@pytest.mark.parametrize("ours", [0, 30, 40, 50, 60, 70, 80, 90, 100])
def test_our_limit_is_found_among_theirs(ours: float) -> None:
    """The limit is searched from a step below the published rates to a step above, also between them."""
    published = [run(40, holds=True), run(60, holds=True), run(80, holds=False)]
    oracle = Oracle(lambda case: (case.rate or 0.0) <= ours)
    search = compare(CLUSTER, published, ClusterWorkload("conv"), None)
    found = drive({"": search}, 1, run=oracle.run)[""]
    assert (found.holds, found.breaks) == (60, 80)
    assert found.ours == (None if ours < 30 else min(ours, 90))
    assert {case.split for case in oracle.cases} == {CLUSTER.split}


@pytest.mark.parametrize(
    ("holds", "breaks", "ours", "agrees"),
    [
        (60, 70, 60, True),
        (60, 70, 70, True),
        (60, 70, 50, True),
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
def test_limits_agree_within_a_step(
    holds: float | None, breaks: float | None, ours: float | None, agrees: bool
) -> None:
    """The limits agree if ours is within a step of the last rate that held and the first that broke."""
    assert Comparison(holds, breaks, ours, ()).agrees is agrees
