"""Clients that give up at a deadline: it holds in every attempt and on every worker, and nothing is computed after it."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.worker import commands as c
from tests.property.fake_worker import FakeWorker
from tests.property.mesh_world import TICK_S, MeshWorld
from tests.property.test_mesh_world import SWAPPING, MeshCase, meshes, settle
from tests.property.test_moves import move_some

PATIENCE_S = st.sampled_from([0.5, 2.0, 8.0])
#: From a deadline to the next tick of a worker, with the rounding of both.
LATE_S = TICK_S + 0.01
#: Until the last member has dropped a request: a confirmation of a lost closing, and what the scheduler waits for.
HELD_S = 10.0
#: Iterations that were in flight at the deadline keep their sequences until they end.
IN_FLIGHT_S = 3 * 1.6


def watch_iterations(world: MeshWorld) -> None:
    """No iteration begins with a sequence whose client has given up."""
    perform = world._processes.perform

    def watched(worker: FakeWorker, command: Any) -> None:
        if isinstance(command, c.RunIteration):
            for row in command.batch.rows:
                deadline_s = world.deadlines.get(worker.engine[row.sequence_id].choice_id)
                assert deadline_s is None or world.now <= deadline_s + LATE_S, "computed for a client that gave up"
        perform(worker, command)

    world._processes.perform = watched  # type: ignore[method-assign]


def watch_holders(world: MeshWorld, late_s: float) -> None:
    """No member that runs holds a request for longer than `late_s` after its deadline."""

    def look() -> None:
        for choice_id, deadline_s in world.deadlines.items():
            if world.now <= deadline_s + late_s:
                continue
            assert choice_id in world.ended, "a client was never told of its deadline"
            if world.now <= deadline_s + late_s + IN_FLIGHT_S:
                continue
            for worker in world.workers.values():
                held = [sequence.choice_id for sequence in worker.role.sequences]
                assert worker.stalled or choice_id not in held, "held for a client that gave up"
        world.at(0.2, look)

    look()


def assert_ended(world: MeshWorld, *allowed: str) -> None:
    """Requests end whole, in time, or at their deadlines; those without one end whole."""
    for choice_id, ending in world.ended.items():
        if ending == "length":
            assert len(world.delivered[choice_id]) == world.stops[choice_id].max_new_tokens
        elif ending == "deadline_exceeded":
            assert choice_id in world.deadlines
        else:
            assert ending in ("no_workers", "no_scheduler", *allowed)
    event(f"some gave up: {'deadline_exceeded' in world.ended.values()}")


@settings(max_examples=50)
@given(meshes(1, 24), PATIENCE_S, st.integers(0, 8))
def test_nothing_is_computed_after_a_deadline(case: MeshCase, patience_s: float, moves: int) -> None:
    """Clients give up in every phase, and while their sequences move: each is told within a tick, and no iteration follows."""
    world, count = case.world(), case.count
    world.patience_s = patience_s
    watch_iterations(world)
    watch_holders(world, late_s=2 * TICK_S)
    move_some(world, moves)
    settle(world, count)
    assert_ended(world)
    for choice_id, deadline_s in world.deadlines.items():
        assert world.ended[choice_id] in ("length", "deadline_exceeded"), deadline_s


@settings(max_examples=25)
@given(meshes(8, 24, num_blocks=st.integers(11, 16), policies=SWAPPING), PATIENCE_S)
def test_kv_on_hosts_is_freed_at_a_deadline(case: MeshCase, patience_s: float) -> None:
    """Where sequences are swapped out and in, those whose clients give up leave no block on either side."""
    world, count = case.world(), case.count
    world.patience_s = patience_s
    watch_iterations(world)
    settle(world, count)
    assert_ended(world)


@settings(max_examples=60)
@given(
    meshes(1, 16),
    PATIENCE_S,
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from([0.0, 0.1, 0.3]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_deadlines_hold_in_the_rain(
    case: MeshCase, patience_s: float, kills: int, stalls: int, restarts: int, loss: float, ending_loss: float
) -> None:
    """Workers die and stall, the scheduler restarts, messages are lost, those that a request is over among them: each attempt
    has the deadline that the first one had, and no member holds a request for longer than a few seconds after it.
    """
    world, count = case.world(), case.count
    world.patience_s, world.ending_loss = patience_s, ending_loss
    world.lose(loss)
    watch_holders(world, late_s=HELD_S)
    case.rain(world, kills, stalls, away_s=4.0)
    for _ in range(restarts):
        world.at(world.rng.uniform(0, 6), lambda: world.restart_scheduler(world.rng.choice([0.01, 0.5, 3.0])))
    settle(world, count)
    assert_ended(world, "fells_workers", "not_recovered")


@settings(max_examples=30)
@given(meshes(1, 16), PATIENCE_S, st.floats(0.5, 12.0))
def test_workers_keep_deadlines_without_a_gateway(case: MeshCase, patience_s: float, seconds: float) -> None:
    """The gateway stands still and closes no request, and workers drop them at their deadlines all the same."""
    world, count = case.world(), case.count
    world.patience_s = patience_s
    watch_iterations(world)
    world.at(world.rng.uniform(0.5, 3), partial(world.pause, "gateway", seconds))
    settle(world, count)
