"""Interruption signs in a machine's metadata, and which of them are active.

Law: a sign is active from the first answer that has it until the first complete answer that does not.
Its deadline is Unix time: the cloud's, or that of the first answer plus the least grace that this cloud gives.
A deadline only moves to an earlier time; an incomplete answer withdraws nothing.
Source: the grace period of SpotServe, section 4, which is each cloud's notice before it reclaims a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The shortest notice of any of the clouds, in seconds: assumed where a machine is reclaimed without a time.
SHORTEST_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign in an answer; `reason` is the cloud, and its term for the event.

    Attributes:
        event_id: the same in every answer that has this sign.
        deadline_s: Unix time at which the machine may be reclaimed; `None` where the answer names none.
        grace_s: time from the first answer, where it names none.
        is_hint: the machine may be reclaimed, and a sign with a deadline would follow.
        acknowledgeable: the cloud reclaims the machine earlier once the event is acknowledged.
    """

    event_id: str
    reason: str
    deadline_s: float | None = None
    grace_s: float = SHORTEST_GRACE_S
    is_hint: bool = False
    acknowledgeable: bool = False


@dataclass(frozen=True, slots=True)
class MetadataAnswered:
    """Event: a machine's metadata was queried. `problem` is why the answer is incomplete, in words that stay the same while the
    cause does; `None` where it is complete.
    """

    signs: tuple[Sign, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveSign:
    """An active sign; `deadline_s` is `None` for a hint only."""

    sign: Sign
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class SignChanges:
    """Signs that are new, or whose deadline moved to an earlier time, and signs that are gone; each in order."""

    seen: tuple[ActiveSign, ...]
    gone: tuple[ActiveSign, ...]


class ActiveSigns:
    """The active signs of one machine."""

    def __init__(self) -> None:
        self._active: dict[str, ActiveSign] = {}

    def observe(self, answer: MetadataAnswered, now: float) -> SignChanges:
        """Apply an answer and return what it changes."""
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
        """Return the ids of the events that the cloud lets the machine acknowledge, oldest first."""
        return [event_id for event_id, active in self._active.items() if active.sign.acknowledgeable]


def _deadline_s(sign: Sign, known: ActiveSign | None, now: float) -> float | None:
    known_s = None if known is None else known.deadline_s
    if sign.is_hint:
        return known_s
    if sign.deadline_s is None:
        return now + sign.grace_s if known_s is None else known_s
    return sign.deadline_s if known_s is None else min(sign.deadline_s, known_s)
