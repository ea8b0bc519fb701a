"""Estimates the seconds of answers from their assignment on, and finds the cheapest worker by load and life for as long.

`lifetimes.cheapest`, without the exact cost of workers that cannot be it.

Law: the choice is that of `cheapest` over all of them; bounds of a chance only spare its computation.
A chance 1 - exp(-x) is between x - x^2/2 and x - x^2/2 + x^3/6. x is known where the hazard is constant while an answer lasts.

Law: lengths are unknown before the end. Until enough answers to requests with about as many `max_new_tokens` have ended, any
length up to that is equally likely, at `token_s` a token; from then on, the times of the last ones are.
Only answers that ended in order count, so that long ones on machines that end soon count less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from spotwise.core.lives.survival import Place, cheapest
from spotwise.core.scheduler.views import WorkerView

#: Share of an interruption's seconds that bounds are apart at least, above what rounding adds to a cost.
_MARGIN = 1e-6


@dataclass(slots=True)
class AnswerLengths:
    """Equally likely seconds of an answer; `first`, `second`, `third`: the means of s, s^2/2 and s^3/6."""

    seconds: tuple[float, ...]
    longest_s: float
    first: float
    second: float
    third: float

    @classmethod
    def of(cls, seconds: tuple[float, ...]) -> AnswerLengths:
        """Sum up some lengths."""
        squares = [span_s * span_s for span_s in seconds]
        cubes = sum([square * span_s for square, span_s in zip(squares, seconds, strict=True)])
        number = len(seconds)
        return cls(seconds, max(seconds), sum(seconds) / number, sum(squares) / number / 2, cubes / number / 6)


def cheapest_worker(
    by_load: Iterable[tuple[float, WorkerView]], lengths: AnswerLengths, interruption_s: float
) -> WorkerView:
    """Return the worker of the least expected cost, of some with the seconds of their loads, which ascend."""
    longest_s, first, second, third = lengths.longest_s, lengths.first, lengths.second, lengths.third
    margin_s = _MARGIN * (1.0 + interruption_s)
    most_s = float("inf")  # that the cheapest one costs
    bounded: list[tuple[float, float, WorkerView]] = []
    for load_s, view in by_load:
        if load_s > most_s:
            break
        life = view.life
        low_s = high_s = load_s
        if life is not None:
            per_s = life.per_s
            if longest_s <= life.steady_s and per_s * longest_s <= 1.0:
                low = per_s * (first - per_s * second)
                low_s += interruption_s * low
                high_s = low_s + interruption_s * per_s * per_s * per_s * third
            else:
                high_s += interruption_s
        if low_s <= most_s:
            bounded.append((low_s, load_s, view))
            if high_s + margin_s < most_s:
                most_s = high_s + margin_s
        if life is None:
            break  # the load alone is the cost, and that of all behind is no lower
    left = [(load_s, view) for low_s, load_s, view in bounded if low_s <= most_s]
    if len(left) == 1:
        return left[0][1]
    best = cheapest([place(view, load_s) for load_s, view in left], lengths.seconds, interruption_s)
    return next(view for _, view in left if view.id == best.name)


def place(view: WorkerView, load_s: float) -> Place:
    """Return a worker as a place."""
    life = view.life
    return Place(view.id, 0.0, None, load_s) if life is None else Place(view.id, life.age_s, life.hazard, load_s)


#: Answers of a class that are remembered, and how many of them are enough.
REMEMBERED, ENOUGH = 64, 16
#: Equally likely lengths stand for all: the middles of so many equal shares.
SHARES = (1 / 8, 3 / 8, 5 / 8, 7 / 8)


class _Ended:
    """The last times of a class; what stands for them is chosen again every `ENOUGH` answers."""

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
