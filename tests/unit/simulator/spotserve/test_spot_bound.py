"""Every run ends: at its last answer, or at its bound with the requests that were not served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.policy import Phases
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.run import STALL_S, SpotRun
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
APART = replace(SPOTSERVE, name="apart", phases=Phases.SPLIT)
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


@pytest.mark.parametrize("required_rate", [None, 0.5])
@pytest.mark.parametrize("system", [*SYSTEMS, APART], ids=lambda system: f"{system.name}-{system.batching}")
def test_a_run_that_can_answer_nothing_any_more_ends_long_before_its_bound(
    system: SpotSystem, required_rate: float | None
) -> None:
    """Measurements of the load and ticks alone do not keep it going for a year; its report says what is missing."""
    trace = tiny.trace((0.0, "add", "a b c d"), (30.0, "remove", "b c d"), end_s=50.0)
    run = replace(tiny.run(trace, (0.0, 29.5, 40.0), system, required_rate=required_rate), drain_s=3e7)
    outcome = serve(run)
    assert outcome.ended_s == 50.0 + STALL_S
    assert (len(outcome.requests), len(outcome.unfinished)) == (1, 2)
    assert outcome.why_unfinished == "no configuration of tiny fits the 1 instance that is left"


def test_phases_apart_without_machines_for_both_end_with_a_report() -> None:
    """Two pipelines take four of these instances: with three, phases together serve, and phases apart never begin."""
    trace = tiny.trace((0.0, "add", "a b c"), end_s=50.0)
    together, apart = (serve(measured(trace, (1.0, 2.0), each, 3e7)) for each in (SPOTSERVE, APART))
    assert (len(together.requests), together.why_unfinished) == (2, "")
    assert (len(apart.requests), len(apart.unfinished), apart.changes) == (0, 2, ())
    assert apart.why_unfinished == "no configuration of tiny fits the 3 instances that are left"


def test_a_slow_answer_is_waited_for() -> None:
    """A run with hours between two tokens is not taken for one in which nothing happens; neither is the loading of weights."""
    slow = replace(tiny.SURROUNDINGS, slowdown=3e4, storage_bytes_per_s=100.0)
    trace = tiny.trace((0.0, "add", "a b"), (20.0, "remove", "a b"), (25.0, "add", "c d"), end_s=50.0)
    ahead = replace(SPOTSERVE, batching=BatchFormation.ITERATION, forms_ahead=True)
    for system in (REPARALLELIZATION, REROUTING, SPOTSERVE, ahead):
        outcome = serve(replace(tiny.run(trace, (1.0,), system, slow), drain_s=3e7))
        assert len(outcome.requests) == 1 and outcome.ended_s > 50.0 + 2 * STALL_S
    trace = tiny.trace((0.0, "add", "a b"), end_s=50.0)
    outcome = serve(replace(tiny.run(trace, (1.0,), SPOTSERVE, slow), drain_s=3e7))
    assert len(outcome.requests) == 1 and outcome.ended_s > 50.0 + 2 * STALL_S


def test_why_requests_are_left_is_told_apart() -> None:
    gone = tiny.trace((0.0, "add", "a b"), (30.0, "remove", "a b"), end_s=50.0)
    assert serve(measured(gone, (40.0,), SPOTSERVE, 9.0)).why_unfinished == "no instance is left"
    stays = tiny.trace((0.0, "add", "a b"), end_s=50.0)
    late = serve(measured(stays, (49.5,), SPOTSERVE, 1.0))
    assert late.why_unfinished == "2 instances had not answered them 1 s after the trace's end"
