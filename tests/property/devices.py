"""The devices of a whole mesh in one process: they report their places, form groups when they are told, die and come back, and
leave where they have to.

A worker is a group of devices, and lives while all of them do. Before the first re-shape each group leads itself, as processes
do by their settings; later only planners say which groups there are. A device that comes back is in no group.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, Pool
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.wire.roles import MeshRole
from tests.property.mesh_world import HEARTBEAT_S, MeshWorld
from tests.property.planners import Planners

MODEL = ModelShape("six", 6, 64, 6_000, 3_000, 3_000, 256)


class Devices:
    """Devices, and the groups that they are in.

    Attributes:
        incarnations: of each device, as it is now; `None` while it is dead.
        at_first: the groups before the first re-shape.
        leave_at_s: of devices under notice, the time at which they leave at the latest.
        slowest_s: a group takes so long to form, at most.
        fail_rate: share of orders to lead that come to nothing.
    """

    def __init__(self, world: MeshWorld, planners: Planners, shards: int, spare: int) -> None:
        self._world = world
        self._planners = planners
        self.incarnations: dict[str, int | None] = {}
        self.leave_at_s: dict[str, float] = {}
        self.slowest_s = 1.0
        self.fail_rate = 0.0
        self._groups: dict[str, m.DeviceGroup] = {}
        self._newest: dict[str, tuple[int, int]] = {}
        self._forming: set[str] = set()
        self.at_first: list[m.DeviceGroup] = []
        world.devices = self
        for worker_id, worker in world.workers.items():
            assert worker.member.pool is not None
            ids = tuple(f"{worker_id}-d{number}" for number in range(shards))
            self.at_first.append(m.DeviceGroup(worker_id, worker.member.pool, 1, shards, ids))
            self._groups[worker_id] = self.at_first[-1]
        for device_id in [*(each for group in self.at_first for each in group.device_ids), *_named("spare", spare)]:
            self.incarnations[device_id] = None
            self._start(device_id)

    def receive(self, device_id: str, message: Any) -> None:
        """Answer a survey, or form a group."""
        incarnation = self.incarnations[device_id]
        if incarnation is None:
            return
        match message:
            case m.SurveyDevice(sender_id, number):
                report = m.DeviceSurveyed(device_id, incarnation, number, MODEL, self._places(device_id))
                self._world.send(MeshRole.WORKER, device_id, m.Send(sender_id, report))
            case m.LeadGroup() if device_id not in self.leave_at_s:
                self._lead(device_id, message)
            case m.Drain(_, deadline_s):
                self.drain(device_id, deadline_s)

    def join(self, device_id: str) -> None:
        """A new device joins the mesh."""
        self.incarnations[device_id] = None
        self._start(device_id)

    def drain(self, device_id: str, deadline_s: float) -> None:
        """Let a device leave once it is in no group, or at the deadline."""
        if self.incarnations.get(device_id) is not None:
            self.leave_at_s[device_id] = min(deadline_s, self.leave_at_s.get(device_id, deadline_s))
            self._world.at(0.2, partial(self._leave_when_free, device_id))

    def _leave_when_free(self, device_id: str) -> None:
        if self.incarnations[device_id] is None or device_id not in self.leave_at_s:
            return
        if not self._places(device_id) or self._world.now >= self.leave_at_s[device_id]:
            self._broadcast(device_id, m.MemberState.LEFT)
            self.kill(device_id, None)
        else:
            self._world.at(0.2, partial(self._leave_when_free, device_id))

    def kill(self, device_id: str, back_s: float | None) -> None:
        """End a device, and with it the workers that it computes for; it comes back after a while, or never."""
        if self.incarnations.get(device_id) is None:
            return
        self.incarnations[device_id] = None
        self._newest.pop(device_id, None)
        self.leave_at_s.pop(device_id, None)
        for worker_id, group in list(self._groups.items()):
            if device_id in group.device_ids:
                self._world.kill(worker_id)
        if back_s is not None:
            self._world.at(back_s, partial(self._start, device_id))

    def _start(self, device_id: str) -> None:
        if self.incarnations[device_id] is None:
            self.incarnations[device_id] = incarnation = int(self._world.now * 1000)
            self._beat(device_id, incarnation)
            if self._planners.deployment is None:
                for group in self.at_first:
                    if device_id in group.device_ids and group.worker_id not in self._world.workers:
                        self._form(group)

    def _beat(self, device_id: str, incarnation: int) -> None:
        if self.incarnations[device_id] == incarnation:
            self._broadcast(device_id, m.MemberState.DRAINING if device_id in self.leave_at_s else m.MemberState.READY)
            self._world.at(HEARTBEAT_S, partial(self._beat, device_id, incarnation))

    def _broadcast(self, device_id: str, state: m.MemberState) -> None:
        """Send a heartbeat, with the place in the newest group."""
        incarnation, places = self.incarnations[device_id], self._places(device_id)
        assert incarnation is not None
        member = m.Member(device_id, m.MemberKind.DEVICE, incarnation, state, "host", 1, "")
        if places:
            member = replace(member, leader_id=places[-1].worker_id, place=places[-1].place)
        member = replace(member, leaves_at_s=self.leave_at_s.get(device_id))
        self._planners.receive_all(device_id, member)
        if self._world.market is not None:
            self._world.market.receive(device_id, member)
            if not self._world.loses(member):
                self._world.transmit(device_id, "scheduler", partial(self._world.feed_scheduler, member))

    def is_used(self, device_id: str) -> bool:
        """Tell whether a device has a position in a group that is there."""
        return bool(self._places(device_id))

    def _places(self, device_id: str) -> tuple[m.GroupMembership, ...]:
        places = []
        for worker_id, group in self._groups.items():
            if device_id in group.device_ids and worker_id in self._world.workers:
                stage, shard = divmod(group.device_ids.index(device_id), group.shards)
                place = DevicePlace(1, group.stages, group.shards, stage, shard, (0, 1), (0, 1))
                places.append(m.GroupMembership(worker_id, place))
        return tuple(places)

    def _lead(self, device_id: str, order: m.LeadGroup) -> None:
        assert order.device_ids[0] == device_id
        if (order.change, order.term) < self._newest.get(device_id, (0, 0)):
            return
        self._newest[device_id] = (order.change, order.term)
        if order.worker_id in self._forming or order.worker_id in self._world.workers:
            return
        if self._world.rng.random() >= self.fail_rate:
            self._forming.add(order.worker_id)
            group = m.DeviceGroup(order.worker_id, order.pool, order.stages, order.shards, order.device_ids)
            self._world.at(self._world.rng.uniform(0.05, self.slowest_s), partial(self._form, group))

    def _form(self, group: m.DeviceGroup) -> None:
        self._forming.discard(group.worker_id)
        can_form = all(self.incarnations[each] and each not in self.leave_at_s for each in group.device_ids)
        if group.worker_id not in self._world.workers and can_form:
            self._groups[group.worker_id] = group
            self._world.start_worker(group.worker_id, group.pool)


def _named(what: str, count: int) -> list[str]:
    return [f"{what}-{number}" for number in range(count)]


#: Pools of the workers at first.
POOLS = (
    [Pool.MIXED],
    [Pool.MIXED, Pool.MIXED],
    [Pool.PROMPT, Pool.TOKEN],
    [Pool.PROMPT, Pool.TOKEN, Pool.TOKEN],
)
