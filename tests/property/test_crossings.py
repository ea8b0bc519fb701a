"""Workers of two numerics classes die, are late and come back in the other class: no record lies about it, and with `refuse` no
token is computed in another class than those before it.
"""

from __future__ import annotations

from functools import partial

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.messages.members import Pool
from spotwise.core.messages.numerics import Crossing, Numerics
from spotwise.core.scheduler.role import SchedulerLimits
from tests.property.mesh_world import MeshWorld
from tests.property.test_mesh_world import (
    MeshCase,
    assert_served,
    assert_whole,
    meshes,
    settle,
)

#: Two that can take one another's KV, and one that has its KV in another format.
CLASSES = st.sampled_from(
    [
        (Numerics("bfloat16", "dot", "k"), Numerics("bfloat16", "amx", "k")),
        (Numerics("float32", "fma", "k"), Numerics("bfloat16", "dot", "k")),
    ]
)
POOLS = st.sampled_from(
    [
        [Pool.MIXED, Pool.MIXED, Pool.MIXED],
        [Pool.PROMPT, Pool.PROMPT, Pool.TOKEN, Pool.TOKEN],
        [Pool.PROMPT, Pool.PROMPT, Pool.TOKEN, Pool.TOKEN, Pool.TOKEN, Pool.MIXED],
    ]
)
#: A request waits for its class for so long, which is longer than any worker is away, and shorter than a class may be.
LIMITS = SchedulerLimits(max_queue_s=20.0, max_unready_s=60.0)


def assert_counted_once(world: MeshWorld) -> int:
    """Each crossing of a client's tokens was counted once, and is in the ledger once; return how many there were."""
    classes = world.token_classes
    for choice_id in world.stops:
        crossings = classes.crossings(choice_id)
        assert classes.counted[choice_id] == classes.explained[choice_id]
        if crossings is not None:
            assert classes.counted[choice_id] == crossings, f"{choice_id}: {classes.of[choice_id]}"
    return sum(classes.counted.values())


def order_moves(world: MeshWorld, count: int) -> None:
    """Order moves of running requests to any worker, as an operator might."""
    for number in range(count):
        world.at(world.rng.uniform(0.5, 5), partial(_order_move, world, f"r{number}"))


def _order_move(world: MeshWorld, choice_id: str) -> None:
    for worker in list(world.workers.values()):
        for record in list(worker.engine.values()):
            if record.choice_id == choice_id:
                target_id = world.rng.choice(sorted(world.workers))
                world.move(choice_id, record.epoch, worker.member.id, target_id)
                return


@settings(max_examples=60)
@given(meshes(1, 24, pools=POOLS), CLASSES, st.sampled_from(Crossing))
def test_nothing_crosses_where_nothing_happens(
    case: MeshCase, classes: tuple[Numerics, Numerics], crossing: Crossing
) -> None:
    """Both phases of every request are in one class, in a mesh of two."""
    world = case.world(classes=classes, crossing=crossing)
    settle(world, case.count)
    assert_served(world)
    assert assert_counted_once(world) == 0
    assert all(len(set().union(*world.token_classes.of[choice_id])) == 1 for choice_id in world.stops)


@settings(max_examples=100)
@given(
    meshes(1, 16, pools=POOLS),
    CLASSES,
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
    st.booleans(),
)
def test_every_crossing_is_counted_once(
    case: MeshCase,
    classes: tuple[Numerics, Numerics],
    kills: int,
    stalls: int,
    loss: float,
    repeats: bool,
    moves: bool,
) -> None:
    """Workers die and come back in any class, stall, and are ordered to move requests; messages are lost and repeated: every
    request gets every token, records tell the classes of their tokens, and crossings are counted once each.
    """
    world = case.world(classes=classes)
    world.lose(loss, until_s=8.0)
    world.repeats = 0.2 if repeats else 0.0
    case.rain(world, kills, stalls)
    if moves:
        order_moves(world, case.count)
    settle(world, case.count)
    assert_served(world, *(["fells_workers"] if kills + stalls >= 3 else []))
    event("crossed" if assert_counted_once(world) else "not crossed")


@settings(max_examples=100)
@given(
    meshes(1, 16, pools=POOLS),
    CLASSES,
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_nothing_crosses_where_crossings_are_refused(
    case: MeshCase, classes: tuple[Numerics, Numerics], kills: int, stalls: int, loss: float, moves: bool
) -> None:
    """As above: no token is computed in another class (`worker_processes.py` looks at each), and a request whose class does not
    come back ends with that for its reason. Nothing is held for it then.
    """
    world = case.world(LIMITS, classes, Crossing.REFUSE)
    world.lose(loss, until_s=8.0)
    case.rain(world, kills, stalls)
    if moves:
        order_moves(world, case.count)
    settle(world, case.count)
    felled = ["fells_workers"] if kills + stalls >= 3 else []
    assert_whole(world, "length", "no_workers", "no_scheduler", "queue_timeout", "no_class", *felled)
    assert assert_counted_once(world) == 0
    for choice_id in world.stops:
        assert len(set().union(*world.token_classes.of[choice_id])) <= 1 or world.token_classes.crossings(
            choice_id
        ) in (0, None)
    event("a class was gone" if "no_class" in world.ended.values() else "all classes came back")


@settings(max_examples=40)
@given(meshes(2, 16, pools=POOLS), CLASSES, st.lists(st.sampled_from([None, 0.5, 3.0]), min_size=1, max_size=2))
def test_another_gateway_knows_the_classes_of_saved_tokens(
    case: MeshCase, classes: tuple[Numerics, Numerics], sleeps_s: list[float | None]
) -> None:
    """Gateways die or sleep and workers die with them: the records of the next gateway tell the classes of all tokens."""
    world = case.world(classes=classes)
    for each in sleeps_s:
        at_s = world.rng.uniform(0.5, 5)
        world.at(at_s, partial(world.take_over, each))
        case.dies(world, world.rng.randrange(len(case.pools)), at_s)
    settle(world, case.count)
    assert_served(world)
