"""The members of the mesh, by their heartbeats.

Law: a member is present from its first heartbeat until it leaves, its machine's watcher reports its end, or it falls silent.
Only the newest incarnation of an id counts; late messages of earlier ones change nothing.
Time in which the listener itself was away counts as no silence.
Each `MemberJoined` of an incarnation is followed by at most one `MemberLost`; members are listed in order of id.
"""

from __future__ import annotations

from collections.abc import Mapping

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.values import value


@value
class MemberJoined:
    """The first heartbeat of a member, or of a new incarnation of it."""

    member: Member


@value
class MemberLost:
    """A member left, fell silent or was replaced, and what it held is gone; `is_expected`: it left, or was draining. `drained`:
    both, so that it held nothing any more.
    """

    member: Member
    reason: str
    is_expected: bool = False
    drained: bool = False


#: Seconds for which a lost member's last incarnation is remembered; no heartbeat comes later than that.
FORGOTTEN_AFTER_S = 600.0

MembershipEvent = MemberJoined | MemberLost


class Membership:
    """The members present, as seen by one listener; silent ones are lost after `timeout_s`, or their kind's `timeouts_s`."""

    def __init__(self, timeout_s: float, timeouts_s: Mapping[MemberKind, float] | None = None) -> None:
        self.timeout_s = timeout_s
        self._timeouts_s = timeouts_s or {}
        self._away_s = 0.0
        self._members: dict[str, Member] = {}
        self._received_s: dict[str, float] = {}
        self._newest: dict[str, int] = {}
        self._lost_s: dict[str, float] = {}

    def observe(self, member: Member, now: float) -> list[MembershipEvent]:
        """Handle a heartbeat; return what it changes."""
        if member.incarnation < self._newest.get(member.id, 0):
            return []
        self._newest[member.id] = member.incarnation
        events: list[MembershipEvent] = []
        known = self._members.get(member.id)
        if known is not None and known.incarnation < member.incarnation:
            events.append(self._lose(known, "restarted", now))
            known = None
        if member.state in (MemberState.LEFT, MemberState.LOST):
            if known is not None:
                has_left = member.state is MemberState.LEFT
                reason = "left" if has_left else "ended without notice"
                events.append(self._lose(known, reason, now, is_expected=has_left))
            self._lost_s.setdefault(member.id, now)
            return events
        self._members[member.id] = member
        self._received_s[member.id] = self._listened_s(now)
        if known is None:
            events.append(MemberJoined(member))
        return events

    def was_away(self, seconds: float) -> None:
        """Extend all deadlines by seconds in which the listener received nothing."""
        self._away_s += seconds

    def _listened_s(self, now: float) -> float:
        """The listener's own time, which stops while it is away."""
        return now - self._away_s

    def expire(self, now: float) -> list[MembershipEvent]:
        """Return the members that have been silent for too long."""
        listened_s = self._listened_s(now)
        lost: list[MembershipEvent] = []
        for id_, received_s in sorted(self._received_s.items()):
            timeout_s = self._timeouts_s.get(self._members[id_].kind, self.timeout_s)
            if listened_s - received_s > timeout_s:
                lost.append(self._lose(self._members[id_], f"silent for {timeout_s:g} s", now))
        self._forget(now)
        return lost

    def is_gone(self, member_id: str, incarnation: int) -> bool:
        """Tell whether a later incarnation of a member was seen."""
        return self._newest.get(member_id, 0) > incarnation

    def lost_lately(self, member_id: str, now: float) -> bool:
        """Tell whether a member was lost within the last time-out and is not back: reports of it may be stale."""
        lost_s = self._lost_s.get(member_id)
        return lost_s is not None and member_id not in self._members and now - lost_s <= self.timeout_s

    @property
    def remembered(self) -> int:
        """Ids with a known incarnation, present or not."""
        return len(self._newest)

    def get(self, member_id: str) -> Member | None:
        """Return a member that is present."""
        return self._members.get(member_id)

    def all(self, *kinds: MemberKind) -> list[Member]:
        """Return the members present, of these kinds or all, in order of id."""
        members = (self._members[id_] for id_ in sorted(self._members))
        return [member for member in members if not kinds or member.kind in kinds]

    def workers(self) -> list[Member]:
        """Return the prompt and token workers present, in order of id."""
        return self.all(MemberKind.PROMPT_WORKER, MemberKind.TOKEN_WORKER)

    def _forget(self, now: float) -> None:
        gone = [
            id_ for id_, lost_s in self._lost_s.items() if id_ not in self._members and now - lost_s > FORGOTTEN_AFTER_S
        ]
        for id_ in gone:
            del self._lost_s[id_], self._newest[id_]

    def _lose(self, member: Member, reason: str, now: float, *, is_expected: bool = False) -> MemberLost:
        del self._members[member.id]
        self._received_s.pop(member.id, None)
        self._lost_s[member.id] = now
        was_draining = member.state is MemberState.DRAINING
        return MemberLost(member, reason, is_expected or was_draining, is_expected and was_draining)
