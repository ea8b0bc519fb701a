"""Devices of instances that leave know it, and an instance on which nothing runs any more is released at the provider.

Law: a failed release is repeated after a pause that doubles; one that was accepted, after `ACCEPTED_S`, should the instance
still be there.

Law: the devices of an instance that leaves are notified and reported as those of a machine that its cloud reclaims: they move
their work elsewhere, and go. Instances of one event are reported together. An instance is empty once all its devices have left
in order (or their processes have ended), or have not become ready; a silent device has not left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spotwise.core.fleet.keeper.events import ReleaseAnswered
from spotwise.core.fleet.keeper.kept import InstanceLeave
from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.mesh import InterruptionKind, InterruptionReported
from spotwise.core.spot.commands import PublishNotice, PublishReport
from spotwise.core.spot.notices import RepeatedReports, SentNotices

ACCEPTED_S = 60.0
_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0


@dataclass(slots=True)
class _GiveBack:
    is_open: bool = False
    again_s: float = 0.0
    retry_s: float = _RETRY_S


class GiveBacks:
    """Releases by instance."""

    def __init__(self) -> None:
        self._begun: dict[str, _GiveBack] = {}

    def begin(self, instance_id: str, now: float) -> bool:
        """Tell whether to release an instance now, and note that it is."""
        each = self._begun.setdefault(instance_id, _GiveBack())
        if each.is_open or now < each.again_s:
            return False
        each.is_open = True
        return True

    def answered(self, answer: ReleaseAnswered, now: float) -> None:
        """Note the provider's answer."""
        for instance_id in answer.instance_ids:
            each = self._begun.get(instance_id)
            if each is None:
                continue
            each.is_open = False
            if answer.problem is None:
                each.again_s = now + ACCEPTED_S
            else:
                each.again_s = now + each.retry_s
                each.retry_s = min(2 * each.retry_s, _LONGEST_RETRY_S)

    def forget(self, instance_id: str) -> None:
        """Forget an instance that has gone."""
        self._begun.pop(instance_id, None)


_OVER = (MemberState.LEFT, MemberState.LOST)
#: Devices of an instance of which none was heard for so long after the keeper's start do not exist.
LISTENED_S = 5.0


@dataclass(slots=True)
class _Event:
    """Instances that leave together."""

    leave: InstanceLeave
    instance_ids: list[str] = field(default_factory=list)
    notices: SentNotices = field(default_factory=SentNotices)
    reports: RepeatedReports = field(default_factory=RepeatedReports)


class Departures:
    """The instances that leave, by event, and the devices of all instances.

    Args:
        watcher_id: id of the watcher that sends the reports.
        now: when this keeper began to listen.
    """

    def __init__(self, watcher_id: str, now: float) -> None:
        self._watcher_id = watcher_id
        self._since_s = now
        self._devices: dict[str, dict[str, Member]] = {}
        self._events: dict[str, _Event] = {}
        self._event_of: dict[str, str] = {}

    def begin(self, leaves: Sequence[tuple[str, InstanceLeave]], now: float) -> list[PublishNotice | PublishReport]:
        """Let instances leave that did not before, or now earlier; return what to publish."""
        changed = {}
        for instance_id, leave in leaves:
            if leave.by_device:  # its own watcher reports and notifies
                continue
            before = self._event_of.get(instance_id)
            if before is not None and before != leave.event_id:
                self._take_from(before, instance_id)
            event = self._events.setdefault(leave.event_id, _Event(leave))
            event.leave = leave
            if instance_id not in event.instance_ids:
                event.instance_ids.append(instance_id)
            self._event_of[instance_id] = leave.event_id
            changed[leave.event_id] = event
        commands: list[PublishNotice | PublishReport] = []
        for event in changed.values():
            if self._of(event):
                commands += self._report(event, now)
            for device in self._of(event):
                commands += self._notify(event, device, now)
        return commands

    def observe(self, instance_id: str, device: Member, now: float) -> list[PublishNotice | PublishReport]:
        """Take a heartbeat of an instance's device; return what to publish."""
        devices = self._devices.setdefault(instance_id, {})
        known = devices.get(device.id)
        if known is not None and known.incarnation > device.incarnation:
            return []
        if known is not None and known.incarnation == device.incarnation and known.state in _OVER:
            return []  # late
        devices[device.id] = device
        event = self._events.get(self._event_of.get(instance_id, ""))
        if event is None or device.state in _OVER:
            return []
        is_new = not event.notices.knows(device)
        sent = self._notify(event, device, now)
        return [*self._report(event, now), *sent] if is_new and sent else sent

    def repeat(self, now: float) -> list[PublishReport]:
        """Return the reports to publish again."""
        return [
            PublishReport(report, again=True)
            for event in self._events.values()
            for report in event.reports.due(tuple(device.id for device in self._of(event)), now)
        ]

    def is_empty(self, instance_id: str, known_since_s: float, now: float) -> bool:
        """Tell whether nothing runs on an instance; `known_since_s`: since when it exists for this keeper."""
        devices = self._devices.get(instance_id, {})
        if not devices:
            return now - max(self._since_s, known_since_s) > LISTENED_S
        return all(device.state in (*_OVER, MemberState.STARTING) for device in devices.values())

    def forget(self, instance_id: str) -> None:
        """Forget an instance that has gone."""
        self._devices.pop(instance_id, None)
        if (event_id := self._event_of.pop(instance_id, None)) is not None:
            self._take_from(event_id, instance_id)

    def _take_from(self, event_id: str, instance_id: str) -> None:
        event = self._events[event_id]
        event.instance_ids.remove(instance_id)
        if not event.instance_ids:
            del self._events[event_id]

    def _of(self, event: _Event) -> list[Member]:
        """The devices that have not left, in order of id."""
        found = [
            device
            for instance_id in event.instance_ids
            for device in self._devices.get(instance_id, {}).values()
            if device.state not in _OVER
        ]
        return sorted(found, key=lambda device: device.id)

    def _notify(self, event: _Event, device: Member, now: float) -> list[PublishNotice | PublishReport]:
        notice = event.notices.notify(device, event.leave.deadline_s, event.leave.reason, now)
        return [] if notice is None else [notice]

    def _report(self, event: _Event, now: float) -> list[PublishNotice | PublishReport]:
        leave = event.leave
        device_ids = tuple(device.id for device in self._of(event))
        report = InterruptionReported(
            self._watcher_id, leave.event_id, InterruptionKind.NOTICE, device_ids, leave.deadline_s, leave.reason
        )
        event.reports.remember(report, now)
        return [PublishReport(report)]
