"""Whether a run reached a steady state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.simulator.loads.workload import ClusterWorkload
from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import SPLITWISE_HA, Split
from spotwise.simulator.runs.experiment import simulate
from spotwise.simulator.runs.run_summary import is_steady
from spotwise.simulator.searches.search import Limit
from tests.unit.simulator.runs.summaries import case, summary


@pytest.mark.parametrize(("mean_s", "steady"), [(0.5, True), (2.0, True), (2.1, False), (None, False)])
def test_latency_is_a_small_part_of_a_steady_run(mean_s: float | None, steady: bool) -> None:
    assert is_steady(mean_s, 20.0) is steady


def test_a_run_is_steady_when_it_is_long_and_not_overloaded() -> None:
    """The same load is not steady for five seconds, and steady for a minute; ten times the load is not either way."""
    minute = Case(SPLITWISE_HA.cluster(Split(2, 1)), ClusterWorkload("code"), 1.0, 60.0)
    assert simulate(minute).is_steady
    assert not simulate(replace(minute, seconds=5.0)).is_steady
    assert not simulate(replace(minute, rate=20.0)).is_steady


def test_a_limit_is_as_steady_as_the_runs_that_hold_there() -> None:
    """Runs above the limit, and below it, do not count."""
    steady = {"e2e": {"mean": 0.1}}
    runs = tuple(
        replace(summary(case(rate=rate), holds=rate <= 20.0), latencies_s=steady if rate == 20.0 else {})
        for rate in (10.0, 20.0, 30.0)
    )
    assert Limit((20.0,), runs).is_steady
    assert not Limit((20.0, 10.0), runs).is_steady
