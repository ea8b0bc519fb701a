"""Running requests move between workers with their KV, and no client gets another token, or one twice, for it."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.messages import mesh as m
from tests.property.mesh_world import MeshWorld
from tests.property.test_mesh_world import SWAPPING, MeshCase, assert_served, meshes, settle


def move_some(world: MeshWorld, times: int, within_s: float = 6.0) -> None:
    """Order moves of running sequences to random workers, at random times."""
    for _ in range(times):
        world.at(world.rng.uniform(0.1, within_s), partial(_move_one, world))


def _move_one(world: MeshWorld) -> None:
    running = [
        (worker_id, sequence)
        for worker_id, worker in sorted(world.workers.items())
        for sequence in worker.role.sequences
        if sequence.decodes_here and sequence.produced_here
    ]
    if running:
        worker_id, sequence = world.rng.choice(running)
        others = [each for each in sorted(world.workers) if each != worker_id] or [worker_id]
        world.move(sequence.choice_id, sequence.epoch, worker_id, world.rng.choice(others))


def outcomes(world: MeshWorld) -> set[m.MoveOutcome]:
    return {ended.outcome for ended in world.moves_ended}


@settings(max_examples=150)
@given(meshes(1, 16), st.integers(1, 30))
def test_moves_cost_no_token_and_no_attempt(case: MeshCase, moves: int) -> None:
    """Undisturbed moves lose nothing, compute nothing again, and leave nothing behind on either side; each is answered once."""
    world, count = case.world(), case.count
    move_some(world, moves)
    _assert_undisturbed(world, count)


@settings(max_examples=150)
@given(meshes(4, 24, policies=SWAPPING), st.integers(5, 40))
def test_moves_of_swapped_kv_cost_no_token_and_no_attempt(case: MeshCase, moves: int) -> None:
    world, count = case.world(), case.count
    move_some(world, moves)
    _assert_undisturbed(world, count)


def _assert_undisturbed(world: MeshWorld, count: int) -> None:
    settle(world, count, 250.0)
    assert set(world.attempts.values()) == {1}
    assert set(world.ended.values()) == {"length"}
    assert len(world.moves_ended) == world.moves_ordered
    assert_served(world)


@settings(max_examples=150)
@given(
    meshes(1, 16) | meshes(1, 16, policies=SWAPPING),
    st.integers(1, 20),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.05, 0.3]),
)
def test_moves_in_the_rain_cost_no_token(case: MeshCase, moves: int, kills: int, loss: float) -> None:
    """Workers die, stall and lose their engines in the midst of moves, and messages are lost: every token is delivered once."""
    world, count, pools = case.world(), case.count, case.pools
    rng = world.rng
    world.lose(loss)
    move_some(world, moves)

    case.rain(world, kills, kills)
    for _ in range(kills):
        lost = f"w{rng.randrange(len(pools))}"
        world.at(rng.uniform(0.5, 5), partial(world.lose_engine, lost, rng.choice([0.05, 2.0])))
    settle(world, count, 250.0)
    assert_served(world, *(["fells_workers"] if kills >= 2 else []))


@settings(max_examples=150)
@given(meshes(1, 16) | meshes(1, 16, policies=SWAPPING), st.integers(1, 30), st.sampled_from([0.1, 0.5]))
def test_moves_whose_iterations_fail_cost_no_token_and_no_attempt(case: MeshCase, moves: int, failing: float) -> None:
    """Whichever step a move has reached when the engine raises: each order is answered, and nothing is left behind."""
    world, count = case.world(), case.count
    world.failing = failing
    move_some(world, moves)
    _assert_undisturbed(world, count)
