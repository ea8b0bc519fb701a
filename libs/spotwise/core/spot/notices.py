"""Which member was notified of which deadline, and which notices are sent again.

Law (SpotServe, section 4): a member is notified once of a deadline, and again only of an earlier one or while it still reports
READY `RETELL_S` later (messages may be lost). Where a member is a group, only the devices that have notices of their own leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import Member, MemberState
from spotwise.core.messages.worker import Drain
from spotwise.core.spot.commands import PublishNotice

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
