"""Tracks devices that have to leave and the groups they are in, from heartbeats and watchers' notices.

Law: a notice is of one incarnation and keeps its earliest deadline, also when the device has gone; the next incarnation has
none. A draining device leaves, whatever is withdrawn. Before the first re-shape groups are known by what their devices report;
a group whose worker has left in order is forgotten, unless one of its devices has to leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from spotwise.core.fleet.devices import instance_of
from spotwise.core.latest import LatestDict
from spotwise.core.membership.membership import Membership
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, MemberKind, MemberState, Pool

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _DeviceNotice:
    incarnation: int
    deadline_s: float


@dataclass(slots=True)
class _SightedGroup:
    place: DevicePlace
    device_ids: dict[int, str] = field(default_factory=dict)


class DeviceWatch:
    """The devices of one mesh, as one planner sees them."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._notices = LatestDict[str, _DeviceNotice](_REMEMBERED)
        self._sighted: dict[str, _SightedGroup] = {}
        self._pools: dict[str, Pool] = {}
        self._gone_instances: frozenset[str] = frozenset()
        self._classes = LatestDict[str, str](_REMEMBERED)

    def reported(self, member: m.Member) -> None:
        """Note what the heartbeat of a device or a worker shows."""
        if member.pool is not None:
            self._pools[member.id] = member.pool
        if member.kind is not MemberKind.DEVICE:
            return
        self._classes[member.id] = member.numerics_class
        known = self._notices.get(member.id)
        if known is not None and known.incarnation < member.incarnation:
            self._notices.pop(member.id, None)
        if member.leaves_at_s is not None:
            self.noticed(member, member.leaves_at_s)
        place = member.place
        if place is None:
            return
        group = self._sighted.get(member.leader_id)
        if group is None or group.place.epoch < place.epoch:
            group = self._sighted[member.leader_id] = _SightedGroup(place)
        if group.place.epoch == place.epoch:
            group.device_ids[place.stage * place.shards + place.shard] = member.id

    def noticed(self, member: m.Member, deadline_s: float) -> None:
        """Note that a device has to leave by Unix time `deadline_s`."""
        known = self._notices.get(member.id)
        if known is not None and known.incarnation == member.incarnation:
            deadline_s = min(deadline_s, known.deadline_s)
        self._notices[member.id] = _DeviceNotice(member.incarnation, deadline_s)

    def withdrawn(self, member: m.Member) -> None:
        """Forget a notice, unless its device drains."""
        if member.state is not MemberState.DRAINING:
            self._notices.pop(member.id, None)

    def worker_lost(self, worker: m.Member, *, has_left: bool) -> None:
        """Forget the group of a worker that has left in order."""
        group = self._sighted.get(worker.id)
        if has_left and group is not None and not any(map(self.has_to_leave, group.device_ids.values())):
            del self._sighted[worker.id]

    def instances_gone(self, instance_ids: Iterable[str]) -> None:
        """Note the instances that are gone, as the watcher with the provider reports: their devices do not come back."""
        self._gone_instances = frozenset(instance_ids)

    def comes_back(self, device_id: str) -> bool:
        """Tell whether a device that is absent may be there again later."""
        return instance_of(device_id, self._gone_instances) is None

    def class_of(self, device_id: str) -> str:
        """Return the numerics class of a device, which may be gone; empty where it is not known."""
        return self._classes.get(device_id) or ""

    def deadline_s(self, device_id: str) -> float | None:
        """Unix time by which a device leaves; `None`: it may stay."""
        notice = self._notices.get(device_id)
        return None if notice is None else notice.deadline_s

    def has_to_leave(self, device_id: str) -> bool:
        """Tell whether a device is under notice."""
        return self._notices.get(device_id) is not None

    def leaving(self) -> dict[str, float]:
        """The deadlines of the devices that are present and under notice."""
        devices = [device.id for device in self._membership.all(MemberKind.DEVICE)]
        return {each: deadline_s for each in devices if (deadline_s := self.deadline_s(each)) is not None}

    def first_deadline_s(self, group: m.DeviceGroup) -> float | None:
        """Unix time by which the first device of a group leaves; `None`: all may stay."""
        deadlines = [known for each in group.device_ids if (known := self.deadline_s(each)) is not None]
        return min(deadlines, default=None)

    def usable(self) -> tuple[str, ...]:
        """The devices that may have positions, in order of id."""
        ready = [each.id for each in self._membership.all(MemberKind.DEVICE) if each.state is MemberState.READY]
        return tuple(each for each in ready if not self.has_to_leave(each))

    def sighted(self) -> tuple[m.DeviceGroup, ...]:
        """The groups that devices report, as far as they are whole; those of the prompt pool first, then by id."""
        groups = []
        for worker_id, group in self._sighted.items():
            pool, (stages, shards) = self._pools.get(worker_id), (group.place.stages, group.place.shards)
            ids = tuple(group.device_ids[position] for position in sorted(group.device_ids))
            if pool is not None and len(ids) == stages * shards:
                groups.append(m.DeviceGroup(worker_id, pool, stages, shards, ids))
        return tuple(sorted(groups, key=lambda each: (each.pool is not Pool.PROMPT, each.worker_id)))
