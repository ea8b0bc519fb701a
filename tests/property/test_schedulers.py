"""Several schedulers in a whole mesh, of which one acts: whatever happens to them, every request gets its tokens, each once."""

from __future__ import annotations

from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.property.mesh_world import MeshWorld
from tests.property.schedulers import Schedulers
from tests.property.test_mesh_world import MeshCase, assert_served, close_if_open, meshes, settle


def settle_with(world: MeshWorld, schedulers: Schedulers, count: int) -> None:
    """Run to the end; then nothing is held, and one of them acts."""
    settle(world, count)
    assert schedulers.live == 0
    assert len(schedulers.active) == 1
    event("orders of earlier terms came" if schedulers.refused else "no order of an earlier term came")


@settings(max_examples=20)
@given(meshes(1, 16))
def test_undisturbed_schedulers_need_one_attempt(case: MeshCase) -> None:
    """A standby changes nothing: one scheduler acts for good."""
    world = case.world()
    schedulers = Schedulers(world)
    settle_with(world, schedulers, case.count)
    assert schedulers.takeovers == 1
    assert set(world.ended.values()) == {"length"}


@settings(max_examples=60)
@given(meshes(1, 16), st.integers(1, 4), st.integers(0, 4), st.sampled_from([0.0, 0.0, 3600.0]))
def test_schedulers_that_die_or_stand_still_cost_no_request(
    case: MeshCase, kills: int, pauses: int, set_back_s: float
) -> None:
    """Also where one wakes up that believes to act still: its orders are refused, and its requests are served elsewhere."""
    world = case.world()
    rng = world.rng
    schedulers = Schedulers(world)

    def of_any(act: str, *arguments: float) -> None:
        scheduler_id = rng.choice(schedulers.active or list(schedulers.processes))
        getattr(schedulers, act)(scheduler_id, *arguments)

    for _ in range(kills):
        world.at(rng.uniform(0.1, 6), partial(of_any, "kill", rng.uniform(0.1, 4.0)))
    for _ in range(pauses):
        world.at(rng.uniform(0.1, 6), partial(of_any, "pause", rng.uniform(0.1, 5.0), set_back_s))
    settle_with(world, schedulers, case.count)
    assert_served(world)
    assert set(world.ended.values()) == {"length"}


@settings(max_examples=60)
@given(meshes(4, 12), st.floats(2.0, 4.0))
def test_a_scheduler_that_believes_to_act_still_is_refused(case: MeshCase, seconds: float) -> None:
    """It stood still for longer than its lease, and its clock was set back: it answers what was submitted meanwhile."""
    world = case.world()
    schedulers = Schedulers(world)
    world.at(world.rng.uniform(0.2, 1.0), lambda: schedulers.pause(schedulers.active[0], seconds, set_back_s=3600.0))
    for number in range(case.count):
        world.at(world.rng.uniform(0.5, 4.5), partial(world.request, f"late{number}", 5, 10))
    settle_with(world, schedulers, 2 * case.count)
    assert_served(world)
    assert set(world.ended.values()) == {"length"}


@settings(max_examples=40)
@given(meshes(1, 16), st.integers(1, 3), st.booleans(), st.integers(0, 3))
def test_a_store_that_is_away_or_forgets_costs_no_request(
    case: MeshCase, outages: int, forgets: bool, pauses: int
) -> None:
    """The active scheduler goes on without it; two that act for a moment do no harm."""
    world = case.world()
    rng = world.rng
    schedulers = Schedulers(world)

    def outage(seconds: float) -> None:
        schedulers.store_away_until_s = world.now + seconds
        if forgets:
            schedulers.forget()

    for _ in range(outages):
        world.at(rng.uniform(0.1, 6), partial(outage, rng.uniform(0.1, 4.0)))
    for _ in range(pauses):
        world.at(rng.uniform(0.1, 6), partial(schedulers.pause, f"scheduler-{rng.randrange(2)}", rng.uniform(0.1, 4.0)))
    settle_with(world, schedulers, case.count)
    assert set(world.ended.values()) == {"length"}


@settings(max_examples=40)
@given(meshes(1, 16), st.sampled_from([0.05, 0.3]), st.sampled_from([0.0, 0.5]), st.integers(1, 3))
def test_lost_messages_and_clients_that_leave_hold_nothing(
    case: MeshCase, loss: float, ending_loss: float, kills: int
) -> None:
    """Orders, heartbeats with terms, and closings may be lost while schedulers die and workers stall."""
    world = case.world()
    rng = world.rng
    schedulers = Schedulers(world)
    world.ending_loss = ending_loss
    world.lose(loss)
    for _ in range(kills):
        world.at(rng.uniform(0.1, 6), partial(schedulers.kill, f"scheduler-{rng.randrange(2)}", rng.uniform(0.1, 4.0)))
        world.at(rng.uniform(0.1, 6), partial(world.stall, f"w{rng.randrange(len(case.pools))}", rng.uniform(0.1, 2.0)))
    for number in range(0, case.count, 2):
        world.at(rng.uniform(0.1, 5), partial(close_if_open, world, f"r{number}"))
    settle_with(world, schedulers, case.count)
    assert_served(world, "closed", *(["fells_workers"] if kills >= 3 else []))
