"""Well-formed messages of any content, in any order, from anybody, to members with requests of their own: no role raises."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, get_args

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.fleet.keeper.role import FleetKeeperRole
from spotwise.core.messages import mesh as m
from spotwise.core.spot.role import SpotWatcherRole, WatchPolicy
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError
from tests.property.any_messages import any_message
from tests.property.mesh_world import MeshWorld
from tests.property.planners import Planners
from tests.property.test_mesh_world import SWAPPING, MeshCase, meshes

MESSAGES = get_args(m.Message)


class RoleRaisedError(Exception):
    """A role did not take a message."""


def guarded(role: Any) -> Any:
    """Tell a role's exceptions from those of the tests' own processes, which forged tokens and hand-offs upset."""
    handle = role.handle

    def watched(message: Any, now: float) -> Any:
        if type(message) not in role._handlers:
            return []  # a service does not feed it
        try:
            return handle(message, now)
        except Exception as error:
            raise RoleRaisedError(f"{type(role).__name__} on {message!r}") from error

    role.handle = watched
    return role


def forge(rng: random.Random, role: Any) -> m.Message | None:
    """Return a message that the role has a handler for, as it comes from the wire."""
    kinds = [kind for kind in MESSAGES if kind in role._handlers]
    try:
        return decode(encode(any_message(rng, rng.choice(kinds))))
    except (MalformedMessageError, ValueError, TypeError):
        return None  # no such message can be sent, or it is dropped


def forge_some(world: MeshWorld, count: int) -> None:
    """Send forged messages to every member, over ten seconds."""
    for _ in range(count):
        world.at(world.rng.uniform(0.0, 10.0), partial(_forge_one, world))


def _forge_one(world: MeshWorld) -> None:
    targets: list[tuple[Any, Any]] = [(world.gateway, world.feed_gateway), (world.scheduler, world.feed_scheduler)]
    targets += [(worker.role, partial(world.feed_worker, worker)) for worker in world.workers.values()]
    if world.planners is not None:
        planners = world.planners
        targets += [(role, partial(planners.feed, planner_id)) for planner_id, role in planners.roles.items()]
    role, feed = world.rng.choice(targets)
    message = forge(world.rng, role)
    if message is not None:
        feed(message)


def run(world: MeshWorld, count: int) -> None:
    for role in (world.gateway, world.scheduler, *(worker.role for worker in world.workers.values())):
        guarded(role)
    if world.planners is not None:
        for planner in world.planners.roles.values():
            guarded(planner)
    forge_some(world, count)
    end_s = world.now + 20.0
    while world.now < end_s and world._events:
        try:
            world.run_until(end_s)
            break
        except (AssertionError, KeyError, ValueError, IndexError):
            event("a forged message upset the processes of the test")  # an unknown token or block


@settings(max_examples=100)
@given(meshes(1, 8) | meshes(1, 8, policies=SWAPPING), st.integers(1, 60), st.booleans())
def test_no_message_makes_a_role_raise(case: MeshCase, count: int, plans: bool) -> None:
    world = case.world()
    if plans:
        Planners(world, 1)
    run(world, count)


@pytest.mark.parametrize("seed", range(4))
def test_no_message_makes_a_watcher_raise(seed: int) -> None:
    rng = random.Random(seed)
    roles = [
        guarded(SpotWatcherRole("watcher", WatchPolicy("here"))),
        guarded(FleetKeeperRole("watcher", 1, "provider", 5.0)),
    ]
    now = 1000.0
    for _ in range(300):
        now += rng.choice([0.0, 0.1, 3.0])
        for role in roles:
            message = m.Tick() if rng.random() < 0.2 else forge(rng, role)
            if message is not None:
                role.handle(message, now)
