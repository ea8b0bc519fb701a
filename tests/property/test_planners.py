"""Workers leave under the eyes of planners: requests move, and no client gets another token, or one twice, for it."""

from __future__ import annotations

from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from tests.property.mesh_world import MeshWorld
from tests.property.planners import Planners
from tests.property.test_mesh_world import MeshCase, assert_served, meshes, settle

#: A worker that leaves has others beside it.
SEVERAL = st.sampled_from(
    [
        [Pool.PROMPT, Pool.TOKEN],
        [Pool.MIXED, Pool.MIXED],
        [Pool.PROMPT, Pool.MIXED, Pool.TOKEN],
        [Pool.PROMPT, Pool.TOKEN, Pool.TOKEN, Pool.TOKEN],
    ]
)
#: Requests run for seconds: notices find them.
PACES = st.sampled_from([(0.3, 0.1), (0.5, 0.5), (1.5, 0.1)])

#: Sooner than a gateway gives up a request of which it hears nothing: no lost message may cost so much.
WITHIN_S = 250.0


def notices(world: MeshWorld, planners: Planners, case: MeshCase, count: int) -> None:
    """Some workers get notices, and come back after a while."""
    rng = world.rng
    for _ in range(count):
        number, seconds = rng.randrange(len(case.pools)), rng.choice([0.0, 0.5, 1.5, 3.0, 5.0, 20.0])
        at_s = rng.uniform(0.2, 4.0)
        world.at(at_s, partial(planners.notice, f"w{number}", seconds))
        back_s = at_s + seconds + rng.uniform(0.5, 4.0)
        world.at(back_s, partial(world.start_if_away, f"w{number}", case.pools[number]))


def moved(planners: Planners) -> int:
    return sum(isinstance(order.message, m.MoveRequest) for order in planners.orders)


@settings(max_examples=150)
@given(meshes(4, 16, pools=SEVERAL, paces=PACES), st.integers(1, 6))
def test_workers_that_leave_cost_no_token(case: MeshCase, drains: int) -> None:
    """Every request gets every token, however many workers leave at once, and nothing is left behind on either side."""
    world = case.world()
    planners = Planners(world)
    notices(world, planners, case, drains)
    settle(world, case.count, WITHIN_S)
    event(f"moves: {min(moved(planners), 5)}")
    assert_served(world)


@settings(max_examples=200)
@given(
    meshes(4, 16, pools=SEVERAL, paces=PACES), st.integers(1, 5), st.integers(0, 3), st.sampled_from([0.0, 0.05, 0.3])
)
def test_planners_in_the_rain_cost_no_token(case: MeshCase, drains: int, kills: int, loss: float) -> None:
    """Planners die and come back, the store goes away, workers die and stall, messages are lost, repeated and old."""
    world = case.world()
    planners = Planners(world)
    rng = world.rng
    world.repeats = rng.choice([0.0, 0.3])
    world.lose(loss)
    notices(world, planners, case, drains)
    for _ in range(rng.randint(0, 3)):
        planner_id, at_s = f"planner-{rng.randrange(2)}", rng.uniform(0.2, 8.0)
        world.at(at_s, partial(planners.kill, planner_id))
        world.at(at_s + rng.uniform(0.1, 4.0), partial(planners.start, planner_id))
    if rng.random() < 0.3:
        world.at(rng.uniform(0.2, 8.0), lambda: setattr(planners, "store_away_until_s", world.now + 2.0))
    case.rain(world, kills, kills)
    settle(world, case.count, WITHIN_S)
    assert_served(world, *(["fells_workers"] if kills >= 2 else []))
