"""Machines that leave a simulated world with a notice."""

from __future__ import annotations

import random

import pytest

from spotwise.simulator.world.observation import Arrival, WorldResult
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds

#: Eight requests that decode for about a second and a half.
ARRIVALS = [Arrival(0.01 * number, 40, 60) for number in range(8)]


def run(
    notice_s: float, *leaving: str, at_s: float = 0.3, link_bytes_per_s: float = 1e7, kv_tokens: int = 4096
) -> tuple[WorldResult, worlds.Diary]:
    """Serve the arrivals on one prompt and three token machines, of which some get notice."""
    kind = worlds.machine_type(kv_tokens, link_bytes_per_s)
    diary = worlds.Diary()
    world = World(worlds.machines(1, 3, kind=kind), worlds.settings(elastic=True, max_new_tokens=200), diary)
    for machine_id in leaving:
        world.notice_at(at_s, machine_id, notice_s)
    return world.run(ARRIVALS), diary


def test_requests_move_before_the_deadline() -> None:
    """Every request is answered, none is computed again, and nothing runs on the machine after its deadline."""
    result, diary = run(0.4, "m1")
    assert (result.completed, result.failed) == (8, 0)
    assert result.moved > 0
    assert result.recomputed == 0
    assert diary.busy_s("m1") <= 0.3 + 0.4
    assert len(result.machines) == 4


def test_with_time_enough_requests_end_where_they_are() -> None:
    """By their longest possible answers."""
    result, _ = run(60.0, "m1")
    assert (result.completed, result.moved, result.recomputed) == (8, 0, 0)


def test_without_time_they_are_computed_again() -> None:
    """As without moves; so are those whose copy would take longer than computing again."""
    for notice_s, at_s, link_bytes_per_s in ((0.0, 0.3, 1e7), (0.4, 0.6, 1e6)):
        result, _ = run(notice_s, "m1", at_s=at_s, link_bytes_per_s=link_bytes_per_s)
        assert (result.completed, result.moved) == (8, 0)
        assert result.recomputed > 0


def test_a_machine_without_free_blocks_has_them_computed_again() -> None:
    """They wait for blocks at the scheduler then."""
    result, _ = run(0.4, "m1", "m2", kv_tokens=260)
    assert (result.completed, result.failed) == (8, 0)


@pytest.mark.parametrize("seed", range(12))
def test_any_machines_may_leave_at_any_time(seed: int) -> None:
    """No request is lost, and no block is held at the end, which the world checks."""
    rng = random.Random(seed)
    arrivals = [
        Arrival(at_s, rng.randint(1, 100), rng.randint(1, 80)) for at_s in sorted(rng.uniform(0, 3) for _ in range(40))
    ]
    world = World(
        worlds.machines(2, 3, 2),
        worlds.settings(elastic=True, control_latency_s=0.001, max_new_tokens=100),
        worlds.Diary(),
    )
    for machine_id in rng.sample([f"m{number}" for number in range(7)], 5):
        world.notice_at(rng.uniform(0, 3), machine_id, rng.choice([0.0, 0.1, 0.5, 2.0]))
    result = world.run(arrivals)
    assert (result.completed, result.failed) == (40, 0)
