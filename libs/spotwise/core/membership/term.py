"""Terms: of several processes of a service, one acts, and its orders carry the number of its term.

Law: a process acts from the store's answer that it holds the lease, until the lease's end, counted from before the question.
A refusal ends its term at once, and so does a higher term that any member has seen: it was replaced.
A store that does not answer ends the term where the service needs the store to act; else it extends it: the lease is in that
store, so no other can take it meanwhile. A process that receives nothing from the broker does not ask: its lease ends.
A standby leaves the lease to its holder for one lease's time after the store was away, which may have forgotten it.
A receiver obeys no order of an earlier term than the latest it was sent (`TermFence`): two that act at once do no harm.

Source: leases, Gray and Cheriton, SOSP 1989; fencing numbers as in Chubby, Burrows, OSDI 2006, section 2.4 (sequencers).
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: The lease is extended so many times before it would end.
RENEWALS = 5
#: A standby asks so many times in a lease's time: this much of it may pass between the lease's end and the next term.
QUESTIONS = 15

#: Events that wait at most; the oldest are dropped: their senders have time-outs.
MOST_POSTPONED = 10_000


class TermLease:
    """One process's hold on its service's lease, which ends `lease_s` seconds after it was last extended.

    Attributes:
        term: number of the term that it holds; `None` while it stands by.
        until_s: Unix time at which it ends unless it is extended.
    """

    def __init__(self, lease_s: float, *, needs_store: bool) -> None:
        self.lease_s = lease_s
        self.term: int | None = None
        self.until_s = 0.0
        self._needs_store = needs_store
        self._seen = 0
        self._not_before_s = 0.0

    @property
    def pause_s(self) -> float:
        """Seconds until the store is asked again."""
        return self.lease_s / (QUESTIONS if self.term is None else RENEWALS)

    @property
    def answer_within_s(self) -> float:
        """Seconds after which a store without an answer counts as away: where the term then goes on, before the lease ends that
        was to be extended.
        """
        return self.lease_s if self._needs_store else self.lease_s / 2

    def may_ask(self, now: float, *, receives: bool) -> bool:
        """Tell whether to ask the store now; `receives`: whether the broker's messages arrive here."""
        return receives and now >= self._not_before_s

    def least_term(self, now: float) -> int:
        """Return the least number of a new term: above all that were seen, also where the store has forgotten them."""
        return max(int(now), self._seen + 1)

    def held(self, term: int, asked_s: float) -> bool:
        """Note the store's answer to a question of Unix time `asked_s`; tell whether a term has begun."""
        has_begun = term != self.term
        self.term, self.until_s = term, asked_s + self.lease_s
        self._seen = max(self._seen, term)
        return has_begun

    def refused(self) -> bool:
        """Note that another process holds the lease; tell whether a term has ended."""
        has_ended, self.term = self.term is not None, None
        return has_ended

    def store_is_away(self, now: float) -> bool:
        """Note that the store did not answer; tell whether a term has ended."""
        if self.term is None:
            self._not_before_s = now + self.lease_s
            return False
        if self._needs_store:
            return self.refused()
        self.until_s = now + self.lease_s
        return False

    def saw(self, term: int) -> bool:
        """Note a term that a member has seen; tell whether it ended this process's term."""
        self._seen = max(self._seen, term)
        return self.term is not None and term > self.term and self.refused()

    def holder_ended(self) -> None:
        """Note that the process with the lease has ended: there is none to wait for."""
        self._not_before_s = 0.0


class TermFence:
    """The latest term whose orders were received; 0 is the term of those that have none, and are always obeyed."""

    def __init__(self) -> None:
        self.latest = 0

    def refuses(self, term: int) -> bool:
        """Tell whether an order of that term comes too late."""
        self.latest = max(self.latest, term)
        return 0 < term < self.latest


class Activity:
    """A scheduler's term, and the events that wait for it to be confirmed; `stands_by`: acts only with the lease.

    Law: a standby hears of members and the fleet, so that its view is current when it takes over, and sends nothing. Where the
    lease's end passes before the store has answered (the process stood still), events wait for the answer: in the same term
    they are handled in order, in another one only those that a standby hears. A scheduler that is none of several acts without
    a term.
    """

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
