"""Who is in the mesh, by their heartbeats.

Law: a member is present from its first heartbeat until it says it left, the watcher of its machine says that its process has
ended, or it stays silent for `timeout_s`. Of one id only the
newest incarnation counts; a late message of an older one changes nothing.

Silence counts only while the listener could hear: time in which it was away itself, asleep or cut off from the broker, is put
off (`was_away`), and nobody is lost for it.

Invariants: every `MemberJoined` of an incarnation is followed by at most one `MemberLost` of it; members are listed in order
of id, so that whoever breaks ties by position does so everywhere alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.messages import Member, MemberKind, MemberState


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A member, or a new incarnation of one, was heard for the first time."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A member left, fell silent or was replaced by a new incarnation; what it held is gone.

    Attributes:
        is_expected: it said goodbye, or had said that it would leave.
    """

    member: Member
    reason: str
    is_expected: bool = False


#: Of a member that is gone the last incarnation is remembered for so long; no heartbeat comes later than that.
FORGOTTEN_AFTER_S = 600.0

MembershipEvent = MemberJoined | MemberLost


class Membership:
    """The members present, as seen by one listener.

    Args:
        timeout_s: silence after which a member counts as lost.
        timeouts_s: where that differs, by kind of member.
    """

    def __init__(self, timeout_s: float, timeouts_s: Mapping[MemberKind, float] | None = None) -> None:
        self.timeout_s = timeout_s
        self._timeouts_s = timeouts_s or {}
        self._away_s = 0.0
        self._members: dict[str, Member] = {}
        self._heard_s: dict[str, float] = {}
        self._newest: dict[str, int] = {}
        self._lost_s: dict[str, float] = {}

    def observe(self, member: Member, now: float) -> list[MembershipEvent]:
        """Take in a heartbeat and return what it changes."""
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
                reason = "left" if has_left else "ended without a word"
                events.append(self._lose(known, reason, now, is_expected=has_left))
            self._lost_s.setdefault(member.id, now)
            return events
        self._members[member.id] = member
        self._heard_s[member.id] = self._listened_s(now)
        if known is None:
            events.append(MemberJoined(member))
        return events

    def was_away(self, seconds: float) -> None:
        """Put all silence off by a time in which the listener could hear nobody."""
        self._away_s += seconds

    def _listened_s(self, now: float) -> float:
        """Return the listener's own time, which stands still while it is away."""
        return now - self._away_s

    def expire(self, now: float) -> list[MembershipEvent]:
        """Return whom the silence has lasted too long of."""
        listened_s = self._listened_s(now)
        lost: list[MembershipEvent] = []
        for id_, heard_s in sorted(self._heard_s.items()):
            timeout_s = self._timeouts_s.get(self._members[id_].kind, self.timeout_s)
            if listened_s - heard_s > timeout_s:
                lost.append(self._lose(self._members[id_], f"silent for {timeout_s:g} s", now))
        self._forget(now)
        return lost

    def is_gone(self, member_id: str, incarnation: int) -> bool:
        """Tell whether a later incarnation of a member was heard."""
        return self._newest.get(member_id, 0) > incarnation

    def lost_lately(self, member_id: str, now: float) -> bool:
        """Tell whether a member was lost within the last time-out and has not come back: news of it may still be stale."""
        lost_s = self._lost_s.get(member_id)
        return lost_s is not None and member_id not in self._members and now - lost_s <= self.timeout_s

    @property
    def remembered(self) -> int:
        """Ids of which the last incarnation is known, present or not."""
        return len(self._newest)

    def get(self, member_id: str) -> Member | None:
        """Return a member that is present."""
        return self._members.get(member_id)

    def all(self, *kinds: MemberKind) -> list[Member]:
        """Return the members present, of these kinds if any are given, in order of id."""
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
        self._heard_s.pop(member.id, None)
        self._lost_s[member.id] = now
        return MemberLost(member, reason, is_expected or member.state is MemberState.DRAINING)
