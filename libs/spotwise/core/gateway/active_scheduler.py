"""Which scheduler acts, by the terms in schedulers' heartbeats.

Law: of the terms heard of, the highest acts; a scheduler without one stands by, and its loss concerns no request.
Requests that wait for an earlier one, or for any, are submitted again when a later term shows itself: it does not know them.
"""

from __future__ import annotations

from spotwise.core.messages.members import Member, MemberKind


class ActiveScheduler:
    """The latest term of a scheduler that was heard of; `None` before one, and where schedulers have no terms."""

    def __init__(self) -> None:
        self.term: int | None = None

    def reported(self, member: Member) -> bool:
        """Handle a heartbeat; tell whether it shows a later term."""
        if member.kind is not MemberKind.CLUSTER_SCHEDULER or member.term is None:
            return False
        if self.term is not None and member.term <= self.term:
            return False
        self.term = member.term
        return True

    def may_be(self, member: Member) -> bool:
        """Tell whether a member's loss may leave requests without a scheduler."""
        return member.kind is MemberKind.CLUSTER_SCHEDULER and (self.term is None or member.term == self.term)
