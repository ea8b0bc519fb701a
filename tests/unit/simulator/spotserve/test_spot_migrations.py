"""SpotServe's changes when more happens before they are over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.migration.deployment import Deployment, Device, Instance, RunningRequest
from spotwise.core.migration.mapping.mapper import map_devices
from spotwise.core.migration.planning.link_times import Links
from spotwise.core.migration.planning.plan import MigrationPlan
from spotwise.core.migration.planning.planner import plan_migration
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.files.spot_traces import SpotEvent, SpotEventKind
from spotwise.simulator.spotserve.fleet import InstanceEvent, Stage
from spotwise.simulator.spotserve.run import SpotOutcome
from spotwise.simulator.spotserve.serving import serve, world_of
from spotwise.simulator.spotserve.serving_state import lacking
from spotwise.simulator.spotserve.systems import SPOTSERVE
from tests.unit.simulator.spotserve import spot_worlds as tiny

#: A pipeline is two instances.
SHAPE = ParallelConfig(1, 2, 2, 4)
FIXED = replace(SPOTSERVE, adapts=False, shape=SHAPE)
BUSY = tuple(0.3 + 0.47 * number for number in range(120))
GATHER_S = tiny.SURROUNDINGS.gather_s
#: Weights of a stage take seconds over the network.
SLOW_BYTES_PER_S = 1e6


def outcome(*events: tuple[float, str, str], times_s: tuple[float, ...] = BUSY, **surroundings: float) -> SpotOutcome:
    changed = replace(tiny.SURROUNDINGS, **surroundings)  # type: ignore[arg-type]
    return serve(tiny.run(tiny.trace(*events), times_s, FIXED, changed))


def pipelines(result: SpotOutcome) -> list[int]:
    return [change.config.data if change.config else 0 for change in result.changes]


def slowly(*events: tuple[float, str, str]) -> SpotOutcome:
    """Without notice, where weights take seconds."""
    return outcome(*events, grace_s=0.0, network_bytes_per_s=SLOW_BYTES_PER_S)


def gone_early(gone_s: float | None, grace_s: float) -> SpotOutcome:
    """One of two pipelines loses an instance at 20 s, or earlier, and has another to take its place."""
    trace = tiny.trace((0.0, "add", "a b c d e"), (20.0, "remove", "a"))
    surroundings = replace(tiny.SURROUNDINGS, grace_s=grace_s, network_bytes_per_s=SLOW_BYTES_PER_S)
    world = world_of(tiny.run(trace, BUSY, FIXED, surroundings))

    def goes(at_s: float) -> None:
        world.fleet_happens(InstanceEvent(at_s, Stage.GONE, (world.fleet.machines["a"],)))

    if gone_s is not None:
        world.events.at(gone_s, goes, gone_s)
    return world.run()


class TestLosses:
    """An instance that goes while others wait for what it sends."""

    def test_a_target_of_a_lost_instance_lacks_its_weights(self) -> None:
        """The two that have them go while they send them to two others: storage has to send them, all."""
        whole = slowly((0.0, "add", "a b"), (20.0, "add", "c d"))
        assert [change.storage_bytes for change in whole.changes] == [0, 0]
        result = slowly((0.0, "add", "a b"), (20.0, "add", "c d"), (20.6, "remove", "a b"))
        last = result.changes[-1]
        assert last.storage_bytes == tiny.SHAPE.weight_bytes
        served_s = last.time_s + last.pause_s
        assert served_s > whole.changes[1].time_s + whole.changes[1].pause_s
        assert not [each for each in result.requests if 20.6 < each.finished_s < served_s]

    def test_what_was_there_before_the_loss_is_kept(self) -> None:
        events = (0.0, "add", "a b"), (20.0, "add", "c d")
        change = slowly(*events).changes[1]
        result = slowly(*events, (change.time_s + change.pause_s + 0.5, "remove", "a b"))
        assert sum(each.storage_bytes for each in result.changes) == 0
        assert pipelines(result) == [1, 2, 1]

    def test_what_comes_while_all_moves_is_decided_when_it_has_moved(self) -> None:
        """One that stays and sends is lost: the change ends when the others have got theirs, and one for the loss begins."""
        events = (0.0, "add", "a b c d"), (20.0, "add", "e f")
        change = slowly(*events).changes[1]
        result = slowly(*events, (20.6, "remove", "a"))
        assert pipelines(result) == [2, 3, 2]
        assert 20.6 < result.changes[2].time_s <= change.time_s + change.pause_s + GATHER_S
        assert result.changes[2].storage_bytes == 0


class TestEarly:
    """An instance that goes before its deadline."""

    def test_while_it_sends_its_requests_resume_from_their_tokens_and_the_pipeline_is_planned_again(self) -> None:
        """The successor gets the lost parts from other holders; without the early end nothing is lost."""
        on_time = gone_early(None, 2.5)
        assert pipelines(on_time) == [2, 2] and on_time.recomputed_tokens == 0
        gone_s = on_time.changes[1].time_s + tiny.SURROUNDINGS.switch_s + 0.1
        early = gone_early(gone_s, 2.5)
        assert pipelines(early) == [2, 2, 2]
        assert early.changes[2].time_s > gone_s and early.changes[2].moved_bytes > 0
        assert 0 < early.recomputed_tokens <= SHAPE.max_batch * (tiny.INPUT_TOKENS + tiny.OUTPUT_TOKENS)

    def test_before_pipelines_have_stopped_there_is_nothing_left_to_wait_for(self) -> None:
        assert gone_early(16.5, 4.0).changes[1].time_s == pytest.approx(16.5)


class TestPatience:
    """The losses that one change can cover."""

    def test_notices_that_come_while_pipelines_decode_on_are_one_change(self) -> None:
        """Just in time for the first."""
        result = outcome((0.0, "add", "a b c d e f"), (20.0, "remove", "a"), (21.0, "remove", "c"), grace_s=8.0)
        assert pipelines(result) == [3, 2]
        change = result.changes[1]
        assert change.time_s > 13.0 and change.time_s + change.migration_s <= 20.0
        assert result.recomputed_tokens == 0

    def test_a_newcomer_announced_first_takes_the_place_of_a_leaving_instance(self) -> None:
        result = outcome((0.0, "add", "a b c d"), (18.0, "add", "e"), (20.0, "remove", "a"))
        assert pipelines(result) == [2, 2]
        assert 18.0 < result.changes[1].time_s < 20.0
        assert result.recomputed_tokens == 0

    def test_a_newcomer_announced_later_waits_until_the_interruption_is_settled(self) -> None:
        result = outcome((0.0, "add", "a b c d"), (19.0, "add", "e"), (20.0, "remove", "a"), announced_s=1.0)
        assert pipelines(result) == [2, 1, 2]
        settling, joining = result.changes[1:]
        assert 19.0 < settling.time_s <= joining.time_s
        assert settling.moved_bytes == 0 and joining.moved_bytes > 0

    def test_an_instance_not_ready_when_pipelines_stop_joins_later(self) -> None:
        """The instance was known before the notice, but arrives after the last moment for the transfers."""
        result = outcome(
            (0.0, "add", "a b c d"),
            (19.9, "add", "e"),
            (20.0, "remove", "a"),
            announced_s=9.0,
            network_bytes_per_s=SLOW_BYTES_PER_S,
        )
        assert pipelines(result) == [2, 1, 2]
        settling, joining = result.changes[1:]
        assert settling.time_s + settling.migration_s <= 20.0 and joining.time_s >= 19.9
        assert settling.moved_bytes == 0 and joining.moved_bytes > 0

    def test_a_change_waits_for_a_necessary_instance(self) -> None:
        result = outcome(
            (0.0, "add", "a b"),
            (19.9, "add", "e"),
            (20.0, "remove", "a"),
            announced_s=9.0,
            network_bytes_per_s=SLOW_BYTES_PER_S,
        )
        assert pipelines(result) == [1, 1]
        assert result.changes[1].time_s == pytest.approx(19.9)

    def test_where_nothing_can_stand_pipelines_serve_until_the_deadline_and_again_with_the_next(self) -> None:
        """A request that ends before the deadline is answered there; later ones are served by later machines."""
        result = outcome((0.0, "add", "a b"), (20.0, "remove", "a"), (40.0, "add", "e"), times_s=(16.0, 17.0))
        first, second = result.requests
        assert first.finished_s == pytest.approx(16.0 + tiny.lone_s(SHAPE))
        assert pipelines(result) == [1, 1]
        assert result.changes[1].time_s == pytest.approx(40.0)
        assert second.finished_s > 40.0

    def test_a_load_that_changes_does_not_wait_for_a_newcomer(self) -> None:
        trace = tiny.trace((0.0, "add", "a b c d e f"), (34.0, "add", "g h"), end_s=60.0)
        load = SpotEvent(30.0, SpotEventKind.LOAD, (), required_rate=9.0)
        trace = replace(trace, events=(trace.events[0], load, *trace.events[1:]))
        result = serve(tiny.run(trace, (1.0, 40.0), SPOTSERVE, required_rate=0.1))
        assert [change.time_s for change in result.changes[1:]] == pytest.approx([30.0, 34.0])


def plan() -> MigrationPlan:
    """One pipeline becomes two: c gets the first stage from a, d the last one from b; a request's KV is where it was."""
    before = Deployment(
        ParallelConfig(1, 2, 1),
        tuple(Instance(name, 1) for name in "abcd"),
        {Device("a", 0): Position(0, 0, 0), Device("b", 0): Position(0, 1, 0)},
        {0: (RunningRequest("r", 10),)},
    )
    device_map = map_devices(before, ParallelConfig(2, 2, 1), tiny.SHAPE)
    return plan_migration(device_map, tiny.SHAPE, Links(1e7, 1e6, 1e6))


def test_the_targets_of_pending_transfers_lack_something() -> None:
    moving = plan()
    assert lacking(moving, 0.5, "a") == [Device("c", 0)]
    assert lacking(moving, 0.5, "b") == [Device("d", 0)]
    assert lacking(moving, 0.5, "c") == []
    assert lacking(moving, moving.done_s, "a") == []


def test_a_target_whose_source_lacks_a_part_lacks_it_too() -> None:
    """Two devices of one instance need the same layers: the second has them from the first."""
    before = Deployment(
        ParallelConfig(1, 1, 1),
        (Instance("a", 1), Instance("b", 2)),
        {Device("a", 0): Position(0, 0, 0)},
    )
    moving = plan_migration(map_devices(before, ParallelConfig(3, 1, 1), tiny.SHAPE), tiny.SHAPE, Links(1e7, 1e6, 1e6))
    assert any(each.is_relayed for each in moving.transfers)
    assert sorted(lacking(moving, 0.5, "a")) == [Device("b", 0), Device("b", 1)]
