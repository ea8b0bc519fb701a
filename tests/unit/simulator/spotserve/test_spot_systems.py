"""What SpotServe and the systems beside it do when instances come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.policy import Latency, Phases
from spotwise.files.spot_traces import SpotEvent, SpotEventKind, SpotTrace
from spotwise.simulator.spotserve.run import SpotOutcome
from spotwise.simulator.spotserve.serving import serve
from spotwise.simulator.spotserve.systems import REPARALLELIZATION, REROUTING, SPOTSERVE, BatchFormation, SpotSystem
from tests.unit.simulator.spotserve import spot_worlds as tiny

#: Three pipelines of two instances each; one instance goes at 20 s, one comes at 60 s.
TRACE = tiny.trace((0.0, "add", "a b c d e f"), (20.0, "remove", "a"), (60.0, "add", "g"), end_s=100.0)
SHAPE = ParallelConfig(1, 2, 2, 4)
FIXED = replace(SPOTSERVE, adapts=False, shape=SHAPE)
#: What SpotServe waits with a change, where time allows it.
GATHER_S = tiny.SURROUNDINGS.gather_s
BUSY = tuple(0.3 + 0.47 * number for number in range(120))


def outcome(system: SpotSystem, times_s: tuple[float, ...] = BUSY, **surroundings: float) -> SpotOutcome:
    return serve(tiny.run(TRACE, times_s, system, replace(tiny.SURROUNDINGS, **surroundings)))  # type: ignore[arg-type]


def configs(result: SpotOutcome) -> list[int]:
    return [change.config.data if change.config else 0 for change in result.changes]


def test_spotserve_stops_just_in_time_and_recomputes_nothing() -> None:
    """The old deployment serves as long as the transfers end before 20 s, and an instance of 60 s joins."""
    result = outcome(FIXED)
    assert configs(result) == [3, 2, 3]
    _, going, coming = result.changes
    assert 15.0 < going.time_s < 20.0 and going.time_s + going.migration_s <= 20.0
    assert 60.0 <= coming.time_s < 60.2
    assert going.storage_bytes == coming.storage_bytes == 0 and coming.moved_bytes > 0
    assert result.recomputed_tokens == 0


def test_without_notice_tokens_are_computed_again_and_none_is_decoded_twice() -> None:
    """KV is lost, prompt and answer are computed at once; the first changes nothing for the others."""
    result = outcome(FIXED, grace_s=0.0)
    assert result.changes[1].time_s == pytest.approx(20.0 + GATHER_S)
    assert 0 < result.interrupted_requests <= 8
    assert 0 < result.recomputed_tokens <= 4 * (tiny.INPUT_TOKENS + tiny.OUTPUT_TOKENS)


def test_pipelines_that_lose_no_instance_run_on_while_the_fleet_changes() -> None:
    trace = tiny.trace((0.0, "add", "a b c d"), (20.0, "remove", "d"), end_s=60.0)
    times_s = tuple(4.0 * number for number in range(10))
    static = replace(FIXED, batching=BatchFormation.STATIC)
    changing = serve(tiny.run(trace, times_s, static))
    quiet = serve(tiny.run(tiny.trace((0.0, "add", "a b c d"), end_s=60.0), times_s, static))
    assert changing.latencies_s == pytest.approx(quiet.latencies_s)
    assert changing.interrupted_requests == 0


def test_reparallelization_serves_until_the_deadline_and_then_loads_everything_anew() -> None:
    result = outcome(replace(REPARALLELIZATION, adapts=False, shape=SHAPE))
    assert [change.time_s for change in result.changes] == [0.0, 20.0, 60.0]
    assert all(change.pause_s > tiny.SURROUNDINGS.restart_s for change in result.changes[1:])
    assert [change.storage_bytes for change in result.changes[1:]] == [
        pipelines * tiny.SHAPE.weight_bytes for pipelines in (2, 3)
    ]
    assert result.recomputed_tokens > 0


def test_a_restart_forgets_what_was_answered() -> None:
    result = outcome(replace(REPARALLELIZATION, adapts=False, shape=SHAPE), (17.0,), grace_s=0.0)
    change = result.changes[1]
    assert result.requests[0].finished_s == pytest.approx(20.0 + change.pause_s + tiny.lone_s(SHAPE))
    assert result.recomputed_tokens > tiny.INPUT_TOKENS


def test_rerouting_loses_a_pipeline_and_makes_one_of_those_that_are_left_over() -> None:
    """The left-over devices make no whole pipeline until a newcomer completes one, which does not wait for others."""
    result = outcome(replace(REROUTING, shape=SHAPE))
    assert [(change.time_s, n) for change, n in zip(result.changes, configs(result), strict=True)] == [
        (0.0, 3),
        (20.0, 2),
        (60.0, 3),
    ]
    assert result.changes[2].storage_bytes == tiny.SHAPE.weight_bytes


def test_rerouting_begins_nothing_that_would_be_lost() -> None:
    """Batches take longer than a pipeline has left, so all are computed once."""
    assert outcome(replace(REROUTING, shape=SHAPE), grace_s=10.0).recomputed_tokens == 0


def test_spotserve_makes_its_users_wait_less_than_a_restart_does() -> None:
    restarted = outcome(replace(REPARALLELIZATION, adapts=False, shape=SHAPE))
    assert sum(outcome(FIXED).latencies_s) < sum(restarted.latencies_s)


def test_what_is_taken_from_spotserve_costs_what_it_gave() -> None:
    """Without stops just in time all that runs is lost; without matching more moves; without progress pauses are longer."""
    whole = outcome(FIXED)
    forgetful = outcome(replace(FIXED, recovers=False))
    assert forgetful.recomputed_tokens > 0 and forgetful.changes[1].time_s == pytest.approx(15.0 + GATHER_S)
    unmatched = outcome(replace(FIXED, matches=False))
    assert unmatched.changes[1].moved_bytes > whole.changes[1].moved_bytes
    stiff = outcome(replace(FIXED, progressive=False))
    assert max(change.pause_s for change in stiff.changes) >= max(change.pause_s for change in whole.changes)


def test_a_system_that_adapts_takes_what_serves_the_load() -> None:
    trace = tiny.trace((0.0, "add", "a b c d e f"), end_s=60.0)
    load = replace(trace.events[0], time_s=30.0, nodes=(), kind=SpotEventKind.LOAD, required_rate=9.0)
    trace = replace(trace, events=(trace.events[0], load, trace.events[-1]))
    result = serve(tiny.run(trace, (1.0, 40.0), SPOTSERVE, required_rate=0.1))
    wanted = [change.config for change in result.changes]
    assert len(wanted) == 2 and wanted[0] != wanted[1]
    assert result.changes[1].time_s == pytest.approx(30.0 + GATHER_S)


def test_with_phases_apart_prompts_are_computed_elsewhere_and_their_kv_is_copied() -> None:
    """A lone request takes the copy of its prompt's KV longer; its first token comes with its prompt."""
    system = replace(SPOTSERVE, phases=Phases.SPLIT, latency=Latency.REQUEST)
    result = serve(tiny.run(tiny.trace((0.0, "add", "a b c d"), end_s=30.0), (1.0,), system))
    config = result.changes[0].config
    assert config is not None and config.is_split
    instances = config.pipeline_devices / tiny.MODEL.devices
    copy_s = tiny.INPUT_TOKENS * tiny.SHAPE.kv_token_bytes / (instances * tiny.SURROUNDINGS.network_bytes_per_s)
    step_s = tiny.SimpleCost().step_s(replace(config, max_batch=1))
    assert result.latencies_s[0] == pytest.approx(tiny.lone_s(config) - step_s + copy_s, abs=tiny.MESSAGES_S)


def test_with_phases_apart_a_pipeline_computes_prompts_while_another_decodes() -> None:
    """Many requests end sooner than one after another."""
    system = replace(SPOTSERVE, phases=Phases.SPLIT, latency=Latency.REQUEST)
    times_s = tuple(0.1 * number for number in range(12))
    result = serve(
        tiny.run(
            tiny.trace((0.0, "add", "a b c d"), (5.0, "remove", "d"), (9.0, "add", "e"), end_s=30.0), times_s, system
        )
    )
    assert len(result.requests) == 12
    assert result.ended_s == 30.0


EAGER, KEEPS = SPOTSERVE, replace(SPOTSERVE, name="keeps", keeps=True)
#: Between these rates six tiny instances are better off with other pipelines.
LIGHT, HEAVY = 0.1, 9.0


def alternating(every_s: float, end_s: float) -> SpotTrace:
    """Six instances that stay, and a load that is light and heavy in turn."""
    events = [SpotEvent(0.0, SpotEventKind.ADD, tuple("abcdef"), LIGHT)]
    for step in range(1, int(end_s / every_s)):
        events.append(SpotEvent(every_s * step, SpotEventKind.LOAD, (), HEAVY if step % 2 else LIGHT))
    return SpotTrace("alternating", (*events, SpotEvent(end_s, SpotEventKind.DONE)))


def timed_configs(outcome: SpotOutcome) -> list[tuple[float, str]]:
    return [(change.time_s, str(change.config)) for change in outcome.changes]


def shapes(outcome: SpotOutcome) -> int:
    found: list[ParallelConfig] = []
    for change in outcome.changes:
        if change.config is not None and (not found or found[-1] != change.config.shape):
            found.append(change.config.shape)
    return len(found)


@pytest.mark.parametrize("every_s", [7.0, 20.0, 45.0])
def test_a_load_that_alternates_changes_nothing_twice_within_the_hold(every_s: float) -> None:
    """The eager one follows every change of the load; the other one goes to what serves both loads, and back only where the
    light load lasts longer than the hold: then half the latency is worth a pause of a fifth of a second.
    """
    trace, times_s = alternating(every_s, 600.0), tuple(5.0 * number for number in range(110))
    eager, kept = (serve(tiny.run(trace, times_s, system, required_rate=LIGHT)) for system in (EAGER, KEEPS))
    assert len(eager.requests) == len(kept.requests) == 110
    assert shapes(eager) >= 0.8 * 600.0 / every_s
    assert shapes(kept) == 2 if every_s < 30.0 else shapes(kept) <= shapes(eager)


def test_a_loss_leaves_the_shape_and_a_newcomer_is_taken_at_once() -> None:
    """Of three pipelines of two instances two are left, and are three again as soon as there is an instance more."""
    trace = tiny.trace((0.0, "add", "a b c d e f"), (20.0, "remove", "a"), (40.0, "add", "g"), end_s=60.0)
    kept = serve(tiny.run(trace, (5.0, 30.0, 70.0), KEEPS, required_rate=HEAVY))
    first = kept.changes[0].config
    assert first is not None and first.pipelines == 3
    assert [config for _, config in timed_configs(kept)] == [str(replace(first, data=data)) for data in (3, 2, 3)]
    assert kept.changes[2].time_s <= 41.0


def test_what_does_not_fit_any_more_is_replaced() -> None:
    trace = tiny.trace((0.0, "add", "a b c d"), (40.0, "remove", "c d"), end_s=100.0)
    kept = serve(tiny.run(trace, (5.0, 50.0), KEEPS))
    first, *_, last = (change.config for change in kept.changes)
    assert first is not None and last is not None and first.pipeline_devices == 8 and last.pipeline_devices == 4
    assert not kept.unfinished and kept.changes[-1].time_s <= 40.0
