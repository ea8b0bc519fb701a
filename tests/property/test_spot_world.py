"""What holds in every world of machines that come and go, whatever comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.policy import Latency, Phases
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.simulator.spotserve.run import SpotOutcome
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import (
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotSurroundings,
    SpotSystem,
)
from spotwise.studies.spotserve.studies import ABLATION
from tests.unit.simulator.spotserve import spot_worlds as tiny

#: Machines that stay at the end: enough for one pipeline, whatever happened before.
LAST = tuple(f"last-{number}" for number in range(6))
KEEPS = replace(SPOTSERVE, name="keeps", keeps=True)
SYSTEMS = st.builds(
    lambda system, batching, phases: (
        replace(system, batching=batching, phases=phases, latency=Latency.REQUEST)
        if system.adapts and system.recovers
        else replace(system, batching=batching)
    ),
    st.sampled_from([SPOTSERVE, KEEPS, REPARALLELIZATION, REROUTING]) | st.sampled_from(ABLATION),
    st.sampled_from(BatchFormation),
    st.sampled_from(Phases),
)
TIMES = st.lists(st.floats(0.0, 60.0), min_size=3, max_size=30).map(lambda times: tuple(sorted(times)))
#: With notice, with little, without any.
SURROUNDINGS = st.builds(
    lambda grace_s, announced_s: replace(tiny.SURROUNDINGS, grace_s=grace_s, announced_s=announced_s),
    st.sampled_from([0.0, 0.3, 5.0, 20.0]),
    st.sampled_from([0.0, 5.0]),
)


@st.composite
def traces(draw: st.DrawFn) -> SpotTrace:
    """Nodes that stay a while each, many of them for the same while; the last ones come at some time, and stay."""
    moments = draw(st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True).map(sorted))
    lives: list[tuple[float, float, str]] = []
    for number in range(draw(st.integers(0, 10))):
        start, end = sorted(draw(st.lists(st.sampled_from(moments), min_size=2, max_size=2)))
        lives.append((float(start), float(end) + 0.5 * draw(st.integers(0, 1)), f"node-{number}"))
    comes = float(draw(st.sampled_from([0, 30, 70])))
    happens: dict[tuple[float, SpotEventKind], list[str]] = {(comes, SpotEventKind.ADD): list(LAST)}
    for from_s, to_s, node in lives:
        if to_s > from_s:
            happens.setdefault((from_s, SpotEventKind.ADD), []).append(node)
            happens.setdefault((to_s, SpotEventKind.REMOVE), []).append(node)
    events = [SpotEvent(at_s, kind, tuple(nodes)) for (at_s, kind), nodes in sorted(happens.items())]
    return SpotTrace("drawn", (*events, SpotEvent(80.0, SpotEventKind.DONE)))


def fastest_s(outcome: SpotOutcome, system: SpotSystem) -> float:
    """Return a lone request's latency; in the mesh's roles the prompt yields the first token."""
    configs = [change.config for change in outcome.changes if change.config is not None]
    steps = [tiny.SimpleCost().step_s(replace(config, max_batch=1)) * system.uses_roles for config in configs]
    return min(tiny.lone_s(config) - step_s for config, step_s in zip(configs, steps, strict=True))


@given(traces(), TIMES, SYSTEMS, SURROUNDINGS)
@settings(max_examples=60)
def test_every_request_is_answered_once_whatever_happens_to_the_fleet(
    trace: SpotTrace, times_s: tuple[float, ...], system: SpotSystem, surroundings: SpotSurroundings
) -> None:
    """Each request is answered once, none faster than alone on the fastest configuration; instances are paid to the second."""
    run = replace(tiny.run(trace, times_s, system), surroundings=surroundings)
    outcome = serve(run)
    assert [request.arrived_s for request in outcome.requests] == list(times_s)
    least_s = fastest_s(outcome, system)
    for request in outcome.requests:
        assert request.latency_s >= least_s - 1e-6
        assert request.finished_s <= outcome.ended_s
    lives = [(outcome.ended_s if life.to_s is None else life.to_s) - life.from_s for life in trace.lives()]
    assert outcome.instance_s(Market.SPOT) == pytest.approx(sum(lives))
    assert outcome.instance_s(Market.ON_DEMAND) == 0
    assert outcome.cost(3600.0, 0.0) == pytest.approx(sum(lives))
    event(f"{system.reaction}, interrupted: {outcome.interrupted_requests > 0}")


@given(traces(), TIMES, SYSTEMS, SURROUNDINGS)
@settings(max_examples=10)
def test_the_same_run_is_the_same_outcome(
    trace: SpotTrace, times_s: tuple[float, ...], system: SpotSystem, surroundings: SpotSurroundings
) -> None:
    run = replace(tiny.run(trace, times_s, system), surroundings=surroundings)
    assert serve(run) == serve(run)


@given(
    traces(),
    TIMES,
    st.data(),
    SYSTEMS,
    SURROUNDINGS,
    st.floats(0.0, 60.0),
    st.sampled_from([None, 0.5]),
    st.integers(0, 1),
)
@settings(max_examples=60)
def test_any_trace_ends_and_each_request_is_answered_or_reported_as_unfinished(
    trace: SpotTrace,
    times_s: tuple[float, ...],
    data: st.DataObject,
    system: SpotSystem,
    surroundings: SpotSurroundings,
    drain_s: float,
    required_rate: float | None,
    last: int,
) -> None:
    """Requests of any sizes, and fleets of which nothing or one instance, too small for a pipeline, may be left."""
    sizes = st.tuples(st.integers(1, 40), st.integers(1, 90))
    drawn = tuple(data.draw(st.lists(sizes, min_size=len(times_s), max_size=len(times_s))))
    leave = SpotEvent(75.0, SpotEventKind.REMOVE, LAST[last:])
    shrinking = SpotTrace("shrinking", (*trace.events[:-1], leave, trace.events[-1]))
    run = replace(tiny.run(shrinking, times_s, system, required_rate=required_rate), surroundings=surroundings)
    run = replace(run, arrivals=replace(run.arrivals, sizes=drawn), drain_s=drain_s)
    outcome = serve(run)
    assert outcome.arrivals_s() == list(times_s)
    assert shrinking.end_s <= outcome.ended_s <= run.bound_s
    assert not outcome.unfinished or outcome.ended_s == run.bound_s
    assert all(0 <= request.output_tokens <= 90 for request in outcome.unfinished)
    assert all(request.finished_s <= outcome.ended_s for request in outcome.requests)
    lives = [(outcome.ended_s if life.to_s is None else life.to_s) - life.from_s for life in shrinking.lives()]
    assert outcome.instance_s(Market.SPOT) == pytest.approx(sum(lives))
    event(f"{system.reaction}, unfinished: {bool(outcome.unfinished)}")


@given(TIMES, st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.sampled_from(BatchFormation))
@example(
    (32.0, 35.0, 44.0, 47.0), [0, 1, 2], BatchFormation.BOUND
)  # one of two runs on, and takes over what the other has
@settings(max_examples=40)
def test_nothing_is_computed_twice_where_notice_suffices(
    times_s: tuple[float, ...], leaving: list[int], batching: BatchFormation
) -> None:
    """Instances go one by one with notice enough for what must move, and a place for all that run stays."""
    removed = [(20.0 + 15.0 * place, "remove", f"n{number}") for place, number in enumerate(leaving)]
    trace = tiny.trace((0.0, "add", " ".join(f"n{number}" for number in range(6))), *removed, end_s=90.0)
    # The remaining pipelines have capacity for all that run: no request has to wait for a slot.
    system = replace(SPOTSERVE, batching=batching, adapts=False, shape=ParallelConfig(1, 2, 2, 30))
    surroundings = replace(tiny.SURROUNDINGS, grace_s=12.0)
    outcome = serve(tiny.run(trace, times_s, system, surroundings, model=replace(tiny.MODEL, max_batch=30)))
    assert all(change.migration_s < surroundings.grace_s for change in outcome.changes)
    assert outcome.recomputed_tokens == 0
    event(f"interrupted: {outcome.interrupted_requests > 0}")
