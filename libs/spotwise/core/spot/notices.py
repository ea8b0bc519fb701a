"""Repeats notices to members, and reports of interruptions to planners.

Law: an active sign is reported again every `REPEAT_S`, with the machine's workers of that moment, for as long as it is active.
A withdrawal and a loss are repeated for `KEPT_S`; a report of the same event replaces the earlier one.

Law (SpotServe, section 4): a member is notified once of a deadline, and again only of an earlier one or while it still reports
READY `RETELL_S` later (messages may be lost). Where a member is a group, only the devices that have notices of their own leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.mesh import InterruptionKind, InterruptionReported
from spotwise.core.messages.worker import Drain
from spotwise.core.spot.commands import PublishNotice

#: Seconds between two reports of one event: a part of the shortest notice (30 s), and no load for a bus.
REPEAT_S = 2.0
#: Seconds for which a withdrawal or a loss is repeated: longer than a planner's successor takes to start.
KEPT_S = 60.0
_OF_THE_MACHINE = (InterruptionKind.HINT, InterruptionKind.NOTICE)


@dataclass(slots=True)
class _Reported:
    report: InterruptionReported
    since_s: float
    sent_s: float


class RepeatedReports:
    """The last report of each event."""

    def __init__(self) -> None:
        self._reported: dict[str, _Reported] = {}

    def remember(self, report: InterruptionReported, now: float) -> None:
        """Note a report that is published now."""
        self._reported[report.event_id] = _Reported(report, now, now)

    def due(self, worker_ids: tuple[str, ...], now: float) -> list[InterruptionReported]:
        """Return the reports to publish again; `worker_ids` are the machine's workers now."""
        due = []
        for event_id, reported in list(self._reported.items()):
            is_active = reported.report.kind in _OF_THE_MACHINE
            if not is_active and now - reported.since_s > KEPT_S:
                del self._reported[event_id]
            elif now - reported.sent_s >= REPEAT_S:
                reported.sent_s = now
                due.append(replace(reported.report, worker_ids=worker_ids) if is_active else reported.report)
        return due


#: A member that still reports READY so long after its notice has not received it.
RETELL_S = 1.0


@dataclass(slots=True)
class _SentNotice:
    incarnation: int
    deadline_s: float
    at_s: float
    left: bool = False


class SentNotices:
    """The last notice of each member."""

    def __init__(self) -> None:
        self._sent: dict[str, _SentNotice] = {}

    def notify(self, member: Member, deadline_s: float, reason: str, now: float) -> PublishNotice | None:
        """Return the notice that a member lacks; `None` where it lacks none, or receives nothing yet."""
        if member.state is MemberState.STARTING:
            return None
        sent = self._sent.get(member.id)
        if sent is not None and sent.incarnation >= member.incarnation and deadline_s >= sent.deadline_s:
            if member.state is MemberState.READY and now - sent.at_s >= RETELL_S:
                sent.at_s = now
                return PublishNotice(Drain(member.id, sent.deadline_s, reason, devices_stay=True), again=True)
            return None
        self._sent[member.id] = _SentNotice(member.incarnation, deadline_s, now)
        return PublishNotice(Drain(member.id, deadline_s, reason, devices_stay=True))

    def knows(self, member: Member) -> bool:
        """Tell whether this incarnation of a member was notified."""
        sent = self._sent.get(member.id)
        return sent is not None and sent.incarnation >= member.incarnation

    def left(self, member: Member) -> None:
        """Note that a member left in order."""
        sent = self._sent.get(member.id)
        if sent is not None and member.incarnation >= sent.incarnation:
            sent.left = True

    def all_left(self) -> bool:
        """Tell whether members were notified, and all of them left in order."""
        return bool(self._sent) and all(sent.left for sent in self._sent.values())

    def clear(self) -> None:
        """Forget every notice."""
        self._sent.clear()
