"""Which process a case disturbs, when, and how."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from enum import StrEnum

import psutil

from spotwise.core.planner.plan import PlannedDeployment, ReshapeStage
from spotwise.mesh.redis.store import RedisStore
from tests.live.mesh import LiveMesh

_LOOK_S = 0.005
_LONGEST_S = 60.0
#: Longer than members and the planner's lease last, shorter than after what the supervisor ends a process.
STILL_S = 4.0


class State(StrEnum):
    """How far a re-shape is when something happens."""

    PLANNED = "planned"  #: its plan has just been stored
    FORMING = "forming"  #: new leaders have joined, and their groups load
    MOVING = "moving"
    DONE = "done"  #: the old groups' processes free what they held


class Position(StrEnum):
    """What a process is in the re-shape."""

    OLD_LEADER = "old leader"
    OLD_MEMBER = "old member"
    NEW_LEADER = "new leader"
    NEW_MEMBER = "new member"
    PLANNER = "planner"


class Way(StrEnum):
    """What happens to it."""

    KILL = "killed"
    PAUSE = "stands still"  #: for `STILL_S`
    STOP = "stopped"  #: until it is ended: by the supervisor, or at the end of the case


@dataclass(frozen=True, slots=True)
class Victim:
    """A process of one life."""

    name: str
    process: psutil.Process

    def is_there(self) -> bool:
        """Whether it has not ended."""
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    def end(self) -> None:
        """Kill it if it is still there."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()


def device_at(position: Position, deployment: PlannedDeployment) -> str:
    """Return the device at a position: where there are several, one that is nothing else, or at least leads no other group."""
    is_old = position in (Position.OLD_LEADER, Position.OLD_MEMBER)
    groups, others = deployment.retiring, deployment.new
    if not is_old:
        groups, others = others, groups
    leads = position in (Position.OLD_LEADER, Position.NEW_LEADER)
    found = [each for group in groups for each in (group.device_ids[:1] if leads else group.device_ids[1:])]
    elsewhere = [each for group in others for each in group.device_ids]
    leading = [group.device_ids[0] for group in others]
    return min(found, key=lambda each: (each in elsewhere, each in leading, each))


def positions_of(device_id: str, deployment: PlannedDeployment) -> list[str]:
    """Return what a device is in the old and in the new groups."""
    roles = []
    for age, groups in (("old", deployment.retiring), ("new", deployment.new)):
        for group in groups:
            if device_id in group.device_ids:
                roles.append(f"{age} {'leader' if group.device_ids[0] == device_id else 'member'}")
    return roles


async def reached(store: RedisStore, after: int, state: State) -> PlannedDeployment:
    """Wait until a later re-shape than `after` has come to a state, or past it; return it as it was planned.

    Raises:
        TimeoutError: it has not.
    """
    planned: PlannedDeployment | None = None
    async with asyncio.timeout(_LONGEST_S):
        while True:
            plan = await store.get_plan()
            deployment = None if plan is None else plan.deployment
            if deployment is not None and deployment.change > after and deployment.new_ids:
                planned = deployment if planned is None else planned
                if await _is_there(store, deployment, state):
                    return planned
            await asyncio.sleep(_LOOK_S)


async def _is_there(store: RedisStore, deployment: PlannedDeployment, state: State) -> bool:
    stage = deployment.stage
    if stage.is_over or state is State.PLANNED:
        return True
    if state is State.DONE:
        return False
    if state is State.MOVING or stage is ReshapeStage.MOVING:
        return stage is ReshapeStage.MOVING
    return len(await store.registered(deployment.new_ids)) == len(deployment.new_ids)


async def process_of(mesh: LiveMesh, store: RedisStore, device_id: str) -> Victim:
    """Return the process of a device."""
    (member,) = await store.registered([device_id])
    return Victim(device_id, psutil.Process(member.pid))


async def disturb(victim: Victim, way: Way) -> None:
    """Do it; return at once, or after `STILL_S`."""
    match way:
        case Way.KILL:
            os.kill(victim.process.pid, signal.SIGKILL)
        case Way.STOP:
            os.kill(victim.process.pid, signal.SIGSTOP)
        case Way.PAUSE:
            os.kill(victim.process.pid, signal.SIGSTOP)
            await asyncio.sleep(STILL_S)
            victim.process.send_signal(signal.SIGCONT)
