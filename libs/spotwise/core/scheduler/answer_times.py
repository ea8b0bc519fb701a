"""How long answers take, from their assignment to their end.

Law: lengths are unknown before the end. Until enough answers to requests with about as many `max_new_tokens` have ended, any
length up to that is equally likely, at `token_s` a token; from then on, the times of the last ones are.
Only answers that ended in order count, so that long ones on machines that end soon count less.
"""

from __future__ import annotations

from collections import deque

from spotwise.core.scheduler.cheapest_worker import AnswerLengths

#: Answers of a class that are remembered, and how many of them are enough.
REMEMBERED, ENOUGH = 64, 16
#: Equally likely lengths stand for all: the middles of so many equal shares.
SHARES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)


class _Ended:
    """The last times of a class; what stands for them is chosen anew every `ENOUGH` answers."""

    __slots__ = ("_ended", "_times_s", "likely")

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=REMEMBERED)
        self._ended = 0
        self.likely: AnswerLengths | None = None

    def add(self, seconds: float) -> None:
        self._times_s.append(seconds)
        self._ended += 1
        if self._ended % ENOUGH == 0:
            in_order = sorted(self._times_s)
            self.likely = AnswerLengths.of(tuple(in_order[int(share * len(in_order))] for share in SHARES))


class AnswerTimes:
    """The times of answers by the power of two of their `max_new_tokens`; `token_s`: a token's seconds until they are known."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self._classes: dict[int, _Ended] = {}

    def ended(self, max_new_tokens: int, seconds: float) -> None:
        """Note an answer that ended in order, so many seconds after its assignment."""
        length = max_new_tokens.bit_length()
        known = self._classes.get(length)
        if known is None:
            known = self._classes[length] = _Ended()
        known.add(max(0.0, seconds))

    def lengths(self, max_new_tokens: int) -> AnswerLengths:
        """Return equally likely seconds of an answer, summed up."""
        known = self._classes.get(max_new_tokens.bit_length())
        if known is not None and known.likely is not None:
            return known.likely
        longest_s = max_new_tokens * self._token_s
        return AnswerLengths.of(tuple([share * longest_s for share in SHARES]))

    def likely_s(self, max_new_tokens: int) -> tuple[float, ...]:
        """Return equally likely seconds of an answer."""
        return self.lengths(max_new_tokens).seconds
