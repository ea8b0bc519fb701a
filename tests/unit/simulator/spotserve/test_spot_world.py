"""Batches, pipelines and instances in the world of SpotServe's paper, by the second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.policy import Phases
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.batches import ArtifactPipeline
from spotwise.simulator.spotserve.fleet import Fleet, Stage, fleet_events
from spotwise.simulator.spotserve.pipelines import BatchTimes, Job
from spotwise.simulator.spotserve.role_dispatch import PipelineCost
from spotwise.simulator.spotserve.run import STALL_S, SpotRun
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import (
    REPARALLELIZATION,
    REROUTING,
    SPOTSERVE,
    BatchFormation,
    SpotSurroundings,
    SpotSystem,
)
from tests.unit.simulator.spotserve import spot_worlds as tiny

ONE = ParallelConfig(1, 2, 2, 4)
SIZE = (tiny.INPUT_TOKENS, tiny.OUTPUT_TOKENS)
TIMES = BatchTimes(tiny.SimpleCost(), *SIZE, 1.0)
ALONE = replace(SPOTSERVE, adapts=False, shape=ONE)
STAYS = tiny.trace((0.0, "add", "a b"), end_s=50.0)


def pipeline() -> ArtifactPipeline:
    return ArtifactPipeline(0, ONE, TIMES)


def test_only_whole_steps_count_when_a_batch_is_looked_at_on_its_way() -> None:
    """A prompt of 0.5 s, then steps of 0.05 s."""
    busy, job = pipeline(), Job(0, 0.0, *SIZE)
    busy.begin([job], 1.0)
    assert busy.steps_by(1.4) is None and busy.snapshot(1.4) == ()
    assert busy.steps_by(1.5 + 0.149) == 2 and busy.snapshot(1.649)[0].tokens == tiny.INPUT_TOKENS + 2
    assert busy.boundary_s(1.649) == pytest.approx(1.65)
    busy.settle(1.649)
    assert (job.decoded, job.kv_tokens) == (2, tiny.INPUT_TOKENS + 2)


def test_of_a_prompt_nothing_counts_before_its_end() -> None:
    busy, job = pipeline(), Job(0, 0.0, *SIZE)
    busy.begin([job], 0.0)
    busy.settle(0.49)
    assert (job.decoded, job.kv_tokens) == (0, 0)
    assert busy.boundary_s(0.2) == pytest.approx(0.5)


def test_a_request_that_lost_its_kv_computes_prompt_and_answer_at_once_and_continues() -> None:
    busy, job = pipeline(), Job(0, 0.0, *SIZE, decoded=10, kv_tokens=20)
    job.lose_kv(keep_answer=True)
    assert (job.decoded, job.kv_tokens, job.recomputed_tokens) == (10, 0, 20)
    busy.begin([job], 0.0)
    assert busy.fixed_s == pytest.approx(0.05 * 20)
    assert busy.ends_s == pytest.approx(1.0 + 0.05 * 50)


def test_an_answer_that_is_not_committed_begins_anew() -> None:
    job = Job(0, 0.0, *SIZE, decoded=10, kv_tokens=20)
    job.lose_kv(keep_answer=False)
    assert (job.decoded, job.recomputed_tokens) == (0, 20)


def test_a_lone_request_takes_what_its_batch_of_one_takes() -> None:
    outcome = serve(tiny.run(STAYS, (3.0,), ALONE))
    assert outcome.latencies_s == pytest.approx((tiny.lone_s(ONE),))
    assert outcome.ended_s == 50.0


def test_requests_from_one_queue_share_the_next_batch() -> None:
    """The first computes alone; the three that came meanwhile begin together when it has ended."""
    outcome = serve(tiny.run(STAYS, (0.0, 0.1, 0.2, 0.3), replace(ALONE, batching=BatchFormation.STATIC)))
    first_s = tiny.lone_s(ONE)
    three = replace(ONE, max_batch=3)
    together_s = first_s + tiny.SimpleCost().execution_s(three, tiny.INPUT_TOKENS, tiny.OUTPUT_TOKENS)
    finished = [request.finished_s for request in outcome.requests]
    assert finished == [pytest.approx(first_s)] + 3 * [pytest.approx(together_s)]


@pytest.mark.parametrize("batching", BatchFormation)
def test_each_request_takes_the_time_of_its_own_size(batching: BatchFormation) -> None:
    """Alone one after the other: half the prompt and half the answer take half as long."""
    run = tiny.run(STAYS, (0.0, 20.0), replace(ALONE, batching=batching))
    halved = replace(run.arrivals, sizes=(SIZE, (tiny.INPUT_TOKENS // 2, tiny.OUTPUT_TOKENS // 2)))
    whole_s, half_s = serve(replace(run, arrivals=halved)).latencies_s
    assert half_s == pytest.approx(whole_s / 2, abs=0.05 + tiny.MESSAGES_S)


def test_bound_requests_go_in_powers_of_two() -> None:
    outcome = serve(tiny.run(STAYS, (0.0, 0.1, 0.2, 0.3), ALONE))
    finished = [request.finished_s for request in outcome.requests]
    assert finished[1] == finished[2] < finished[3]


def test_requests_join_between_iterations_where_batches_are_made_anew() -> None:
    """The second one's prompt holds the first one up; both end long before two batches would."""
    outcome = serve(tiny.run(STAYS, (0.0, 1.01), replace(ALONE, batching=BatchFormation.ITERATION)))
    lone_s = tiny.lone_s(ONE)
    first, second = outcome.requests
    assert lone_s + 0.5 < first.finished_s < lone_s + 1.0
    assert second.finished_s < 1.5 * lone_s


def test_a_trace_gives_notice_of_departures_and_arrivals() -> None:
    trace = tiny.trace((0.0, "add", "a"), (40.0, "add", "b"), (60.0, "remove", "a"))
    moments = [
        (event.time_s, event.stage, [m.id for m in event.machines]) for event in fleet_events(trace, 5, 10, frozenset())
    ]
    assert moments == [
        (0.0, Stage.ANNOUNCED, ["a"]),
        (0.0, Stage.READY, ["a"]),
        (30.0, Stage.ANNOUNCED, ["b"]),
        (40.0, Stage.READY, ["b"]),
        (55.0, Stage.NOTICED, ["a"]),
        (60.0, Stage.GONE, ["a"]),
    ]


def test_a_node_that_comes_again_is_another_instance() -> None:
    trace = tiny.trace((0.0, "add", "a"), (10.0, "remove", "a"), (20.0, "add", "a"), end_s=30.0)
    fleet = Fleet(2)
    for event in fleet_events(trace, 5.0, 0.0, frozenset({"a"})):
        fleet.apply(event)
    lives = fleet.paid_lives(30.0)
    assert [(life.instance, life.from_s, life.to_s) for life in lives] == [("a", 0.0, 10.0), ("a#2", 20.0, 30.0)]
    assert {life.market for life in lives} == {Market.ON_DEMAND}
    assert sum(life.seconds(25.0) for life in lives) == 15.0


def test_the_bill_has_the_prices_of_both_markets() -> None:
    run = replace(tiny.run(STAYS, (1.0,), ALONE), on_demand_nodes=("b",))
    outcome = serve(run)
    assert (outcome.instance_s(Market.SPOT), outcome.instance_s(Market.ON_DEMAND)) == (50.0, 50.0)
    assert outcome.cost(36.0, 72.0) == pytest.approx(0.5 + 1.0)
    assert outcome.cost(36.0, 72.0, until_s=10.0) == pytest.approx(0.3)


def test_a_run_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="a run needs a bound"):
        replace(tiny.run(STAYS, (1.0,)), drain_s=float("inf"))


def test_requests_that_end_after_the_trace_are_answered_and_not_counted_as_the_artifact_counts() -> None:
    outcome = serve(tiny.run(STAYS, (1.0, 49.0), ALONE))
    assert len(outcome.requests) == 2 and len(outcome.finished_in_trace()) == 1
    assert outcome.ended_s > outcome.trace_end_s == 50.0


def test_surroundings_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        SpotSurroundings(grace_s=-1.0)


class _FittedCost(tiny.SimpleCost):
    """As the artifact's tables have it for GPT-20B: a lone prompt takes longer than four together."""

    def prompt_s(self, config: ParallelConfig, input_tokens: int) -> float:
        return {1: 1.6, 2: 1.2, 3: 1.1, 4: 1.0}[config.max_batch]


def test_a_narrow_batch_is_padded_where_a_wider_one_is_faster() -> None:
    """No prefill takes longer than one of more prompts, whatever a table of whole batches fits."""
    times = BatchTimes(_FittedCost(), tiny.INPUT_TOKENS, tiny.OUTPUT_TOKENS, 1.0)
    seconds = [
        PipelineCost(times, ONE).iteration_s(BatchShape(prompt_tokens=prompts * tiny.INPUT_TOKENS))
        for prompts in (1, 4)
    ]
    assert seconds == [1.0, 1.0]


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
