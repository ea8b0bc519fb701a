"""What a machine's metadata says of its end, and which of that stands.

Law: a sign stands from the first answer that holds it until the first whole answer that does not. Its deadline is Unix time:
the one that the cloud names, or the time of the first sight and the grace that this cloud gives at least. From then on it only
moves to an earlier time.

Source: the grace period of SpotServe, section 4, which is each cloud's notice before it takes a machine back.

Invariants: the same answer again changes nothing; an answer with a problem withdraws nothing, since what it does not hold is
not known; an event id stands once.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The least notice that any of the clouds gives: what is left where a machine must go and nobody says when.
SHORTEST_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign in an answer.

    Attributes:
        event_id: the same in every answer that holds this sign.
        reason: the cloud, and its word for it.
        deadline_s: Unix time at which the machine may be gone; `None` where the answer names none.
        grace_s: time from the first sight, where it names none.
        is_hint: the machine may go, and then a sign with a deadline follows.
        acknowledgeable: the cloud takes the machine earlier when it is told that nothing is left on it.
    """

    event_id: str
    reason: str
    deadline_s: float | None = None
    grace_s: float = SHORTEST_GRACE_S
    is_hint: bool = False
    acknowledgeable: bool = False


@dataclass(frozen=True, slots=True)
class MetadataAnswered:
    """Event: a machine's metadata was asked for.

    Attributes:
        signs: all that it holds.
        problem: why it is not the whole of it, in words that are the same while the cause is; `None` where it is whole.
    """

    signs: tuple[Sign, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveSign:
    """A sign that stands; `deadline_s` is `None` for a hint only."""

    sign: Sign
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class SignChanges:
    """What an answer changed, in the order of the signs.

    Attributes:
        seen: that are new, or whose deadline moved to an earlier time.
        gone: that stood, and do no more.
    """

    seen: tuple[ActiveSign, ...]
    gone: tuple[ActiveSign, ...]


class ActiveSigns:
    """The signs of one machine."""

    def __init__(self) -> None:
        self._active: dict[str, ActiveSign] = {}

    def observe(self, answer: MetadataAnswered, now: float) -> SignChanges:
        """Take in an answer and return what it changes."""
        seen: dict[str, ActiveSign] = {}
        for sign in answer.signs:
            known = self._active.get(sign.event_id)
            active = ActiveSign(sign, _deadline_s(sign, known, now))
            self._active[sign.event_id] = active
            if known is None or known.deadline_s != active.deadline_s:
                seen[sign.event_id] = active
        gone: list[ActiveSign] = []
        if answer.problem is None:
            held = {sign.event_id for sign in answer.signs}
            gone = [active for event_id, active in self._active.items() if event_id not in held]
            for active in gone:
                del self._active[active.sign.event_id]
        return SignChanges(tuple(seen.values()), tuple(gone))

    def notice(self) -> tuple[float, Sign] | None:
        """Return the earliest deadline and its sign; `None` where the machine may stay."""
        due = [(each.deadline_s, each.sign) for each in self._active.values() if each.deadline_s is not None]
        return min(due, key=lambda pair: pair[0], default=None)

    def acknowledgeable(self) -> list[str]:
        """Return the ids of the events that the cloud would like to hear an answer to, in the order of their first sight."""
        return [event_id for event_id, active in self._active.items() if active.sign.acknowledgeable]


def _deadline_s(sign: Sign, known: ActiveSign | None, now: float) -> float | None:
    known_s = None if known is None else known.deadline_s
    if sign.is_hint:
        return known_s
    if sign.deadline_s is None:
        return now + sign.grace_s if known_s is None else known_s
    return sign.deadline_s if known_s is None else min(sign.deadline_s, known_s)
