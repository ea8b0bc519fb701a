"""Every run ends: at its last answer, or at its bound with the requests that were not served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.fleet.market import Market
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import (
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotSystem,
)
from tests.unit.simulator.spotserve import spot_worlds as tiny

SYSTEMS = [
    replace(system, batching=batching)
    for system in (SPOTSERVE, REPARALLELIZATION, REROUTING)
    for batching in (BatchFormation.BOUND, BatchFormation.ITERATION)
]
every_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: f"{system.name}-{system.batching}")


def measured(trace: SpotTrace, times_s: tuple[float, ...], system: SpotSystem, drain_s: float) -> SpotRun:
    """A run whose rate is measured, as where neither the user nor the trace gives one."""
    return replace(tiny.run(trace, times_s, system, required_rate=None), drain_s=drain_s)


@every_system
def test_a_fleet_that_shrinks_to_nothing_ends_at_the_bound(system: SpotSystem) -> None:
    """The requests that it answered are reported, and those that it did not, with the tokens kept of them."""
    trace = tiny.trace((0.0, "add", "a b"), (30.0, "remove", "a b"), end_s=50.0)
    outcome = serve(measured(trace, (0.0, 29.5, 40.0), system, 25.0))
    assert [request.arrived_s for request in outcome.requests] == [0.0]
    assert [request.arrived_s for request in outcome.unfinished] == [29.5, 40.0]
    assert all(request.output_tokens < tiny.OUTPUT_TOKENS for request in outcome.unfinished)
    assert outcome.unfinished[1].output_tokens == 0
    assert outcome.ended_s == 75.0
    assert outcome.instance_s(Market.SPOT) == 60.0


@every_system
def test_a_fleet_too_small_for_the_model_ends_at_the_bound(system: SpotSystem) -> None:
    """No pipeline ever fits one instance; it is paid until the bound."""
    outcome = serve(measured(tiny.trace((0.0, "add", "a"), end_s=50.0), (1.0, 2.0), system, 10.0))
    assert outcome.requests == ()
    assert [request.arrived_s for request in outcome.unfinished] == [1.0, 2.0]
    assert outcome.instance_s(Market.SPOT) == outcome.ended_s == 60.0


@every_system
def test_a_fleet_too_small_for_its_load_ends_at_the_bound(system: SpotSystem) -> None:
    """An overloaded pipeline answers what it can by then; what it was computing has some of its tokens."""
    times_s = tuple(0.5 * number for number in range(100))
    outcome = serve(measured(tiny.trace((0.0, "add", "a b"), end_s=50.0), times_s, system, 11.0))
    assert outcome.ended_s == 61.0
    assert outcome.requests and outcome.unfinished
    assert len(outcome.requests) + len(outcome.unfinished) == 100
    assert all(request.finished_s <= 61.0 for request in outcome.requests)
    assert 0 < max(request.output_tokens for request in outcome.unfinished) < tiny.OUTPUT_TOKENS


@every_system
def test_the_bound_changes_nothing_where_all_is_answered_before_it(system: SpotSystem) -> None:
    trace = tiny.trace((0.0, "add", "a b c d"), (30.0, "remove", "a"), end_s=50.0)
    run = measured(trace, (0.0, 20.0, 28.0), system, 1000.0)
    assert serve(run) == serve(replace(run, drain_s=500.0))
    assert serve(run).unfinished == ()
