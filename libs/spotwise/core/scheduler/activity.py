"""Decides if a scheduler acts: of several one does, in a term (`core/membership/term.py`).

Law: a standby hears of members and the fleet, so that its view is current when it takes over, and sends nothing.
Where the lease's end passes before the store has answered (the process stood still), events wait for the answer: in the same
term they are handled in order, in another one only those that a standby hears.
A scheduler that is none of several acts without a term.
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: Events that wait at most; the oldest are dropped: their senders have time-outs.
MOST_POSTPONED = 10_000


class Activity:
    """A scheduler's term, and the events that wait for it to be confirmed; `stands_by`: acts only with the lease."""

    def __init__(self, *, stands_by: bool) -> None:
        self.is_alone = not stands_by  #: none of several
        self._until_s = 0.0
        self._postponed: deque[Any] = deque(maxlen=MOST_POSTPONED)
        self.term = 0

    def acts(self, now: float) -> bool:
        """Tell whether it answers and orders."""
        return self.is_alone or (self.term > 0 and now < self._until_s)

    def awaits_answer(self, now: float) -> bool:
        """Tell whether it has a term that must be confirmed first."""
        return not self.is_alone and self.term > 0 and now >= self._until_s

    def postpone(self, event: Any) -> None:
        """Keep an event until the term is confirmed or over."""
        self._postponed.append(event)

    def held(self, term: int, until_s: float) -> bool:
        """Note the lease; tell whether an earlier term of this scheduler, or its standing by, has ended with it."""
        has_begun = term != self.term
        self.term, self._until_s = term, until_s
        return has_begun

    def lost(self) -> None:
        """Stand by."""
        self.term = 0

    def take_postponed(self) -> list[Any]:
        """Return the events that waited, in order."""
        events = list(self._postponed)
        self._postponed.clear()
        return events
