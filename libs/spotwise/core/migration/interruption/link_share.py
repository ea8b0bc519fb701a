"""Chooses the KV copies that run before a deadline, and their start times. Called by `arrangement.py`.

Law: copies run one after another on one link, the last until the deadline; each copy's data grows until its start, all alike.
The chosen set saves most seconds among the sets that fit, smallest copy first: with equal growth no other order keeps the link
busy for a shorter time (Browne and Yechiali, 1990).
It is found by the frontier of link time and savings (Nemhauser and Ullmann, 1969), from the last copy back, pruned by the
greedy choice. Exact while frontiers stay within `POINTS` (always up to 11 copies); beyond, near points are thinned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: Points of all frontiers together, one frontier for each copy; more of them cost time and find little.
POINTS = 32_768


@dataclass(frozen=True, slots=True)
class Copy:
    """A candidate copy: link seconds before growth and seconds that it saves, both above 0."""

    copy_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """The link's time, in seconds from now.

    Attributes:
        grows_from_s: when the data starts to grow.
        free_s, end_s: when the first copy may start, no earlier than `grows_from_s`; when the last must have ended.
        growth: seconds by which a copy grows for each second that it waits.
    """

    grows_from_s: float
    free_s: float
    end_s: float
    growth: float

    def start(self, end_s: float, copy_s: float) -> float:
        """Return when a copy starts that ends at `end_s`; `copy_s`: before it grows."""
        return self.grows_from_s + (end_s - self.grows_from_s - copy_s) / (1.0 + self.growth)

    def starts(self, copies_s: Sequence[float]) -> list[float] | None:
        """Return the latest starts of copies, in their order; `None` where they do not fit."""
        starts: list[float] = []
        at_s = self.end_s
        for copy_s in reversed(copies_s):
            at_s = self.start(at_s, copy_s)
            if at_s < self.free_s:
                return None
            starts.append(at_s)
        return starts[::-1]

    def fits(self, copies: Sequence[Copy]) -> bool:
        """Return whether copies fit, in their order."""
        return self.starts([copy.copy_s for copy in copies]) is not None


def choose(copies: Sequence[Copy], window: Window) -> tuple[int, ...]:
    """Return which copies run, ascending; `copies` are given the smallest first."""
    if window.fits(copies):
        return tuple(range(len(copies)))
    if window.end_s <= window.free_s:
        return ()
    greedy = greedily(copies, window)
    best = _knapsack(copies, window, saved_s(copies, greedy))
    return max(greedy, best, key=lambda chosen: saved_s(copies, chosen))


def saved_s(copies: Sequence[Copy], chosen: Sequence[int]) -> float:
    """Return what the chosen copies save together."""
    return sum(copies[index].saved_s for index in chosen)


def greedily(copies: Sequence[Copy], window: Window) -> tuple[int, ...]:
    """Return the copies that save most per second of the link, while they fit; of equals the smaller."""
    worth = [copy.saved_s / copy.copy_s for copy in copies]
    chosen: list[int] = []
    for index in sorted(range(len(copies)), key=lambda index: -worth[index]):
        tried = sorted([*chosen, index])
        if window.fits([copies[each] for each in tried]):
            chosen = tried
    return tuple(chosen)


#: The chosen copies, as a linked list from the last chosen.
_Chosen = tuple[int, "_Chosen"] | None
#: When the copies chosen so far begin, what they save, and which they are.
_Point = tuple[float, float, _Chosen]


def _knapsack(copies: Sequence[Copy], window: Window, least_s: float) -> tuple[int, ...]:
    frontier: list[_Point] = [(window.end_s, 0.0, None)]
    for index in reversed(range(len(copies))):
        copy = copies[index]
        taken = [
            (start_s, saved + copy.saved_s, (index, chosen))
            for end_s, saved, chosen in frontier
            if (start_s := window.start(end_s, copy.copy_s)) >= window.free_s
        ]
        bound = _Bound(copies[:index])
        hopeful = [
            point for point in [*frontier, *taken] if point[1] + bound.saved_s(point[0] - window.free_s) > least_s
        ]
        frontier = _thinned(_undominated(hopeful), max(3, POINTS // len(copies)))
    chosen_last = frontier[-1][2] if frontier else None
    indices = []
    while chosen_last is not None:
        index, chosen_last = chosen_last
        indices.append(index)
    return tuple(indices)


class _Bound:
    """An upper bound on the savings within a number of seconds: no growth, and parts of copies count."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._seconds = [0.0]
        self._saved = [0.0]
        for copy in sorted(copies, key=lambda copy: -copy.saved_s / copy.copy_s):
            self._seconds.append(self._seconds[-1] + copy.copy_s)
            self._saved.append(self._saved[-1] + copy.saved_s)

    def saved_s(self, seconds: float) -> float:
        whole = bisect_right(self._seconds, seconds) - 1
        if whole == len(self._seconds) - 1:
            return self._saved[-1]
        part = (seconds - self._seconds[whole]) / (self._seconds[whole + 1] - self._seconds[whole])
        return self._saved[whole] + part * (self._saved[whole + 1] - self._saved[whole])


def _undominated(points: list[_Point]) -> list[_Point]:
    kept: list[_Point] = []
    for point in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def _thinned(points: list[_Point], limit: int) -> list[_Point]:
    """Return at most `limit` points: of those with similar savings the one that uses least time, and the last."""
    if len(points) <= limit:
        return points
    *most, last = points
    per_bucket = last[1] / (limit - 2)
    kept: dict[int, _Point] = {}
    for point in most:
        kept.setdefault(int(point[1] / per_bucket), point)
    return [*kept.values(), last]
