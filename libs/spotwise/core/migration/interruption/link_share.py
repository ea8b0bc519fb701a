"""Who gets the link's last seconds: which copies run before a deadline, and when each begins.

Law: copies run one after another on one link, and the last ends at the deadline. Each is of something that grows until its copy
begins, alike for all. Chosen is the set of copies that saves most seconds, among all sets that fit: a knapsack whose weights
depend on the order.

The order is that of size, the smallest first. What grows while it waits is best handled so: with the same growth for all, no
other order keeps the link busy for a shorter time (Browne and Yechiali, 1990). So a set fits if it fits in that order. The set
is found by the frontier of the link's time and what is saved (Nemhauser and Ullmann, 1969): from the last copy back, each is
taken or not, and of two choices that save the same the one stays that uses less time. A choice is given up that could not
save more than the greedy one, even if parts of copies counted. This is exact while no frontier has more than its share of
`POINTS`, always up to 11 copies; beyond, points that save about as much are thinned.

Invariants: what is chosen fits; it saves no less than taking, one after another, what saves most for each of the link's
seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: Points of all frontiers together, one for each copy; more of them cost time and find little.
POINTS = 32_768


@dataclass(frozen=True, slots=True)
class Copy:
    """Something that may be copied.

    Attributes:
        copy_s: of the link, as large as it is before it grows; above 0.
        saved_s: what its copy is worth, above 0.
    """

    copy_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """The link's time, in seconds from now.

    Attributes:
        grows_from_s: what is to be copied grows from then on.
        free_s: the first copy may begin; no earlier than `grows_from_s`.
        end_s: the last copy must have ended.
        growth: seconds by which a copy grows for each second that it waits after `grows_from_s`.
    """

    grows_from_s: float
    free_s: float
    end_s: float
    growth: float

    def start(self, end_s: float, copy_s: float) -> float:
        """Return when a copy begins that is to end at `end_s`; `copy_s`: before it grows."""
        return self.grows_from_s + (end_s - self.grows_from_s - copy_s) / (1.0 + self.growth)

    def starts(self, copies_s: Sequence[float]) -> list[float] | None:
        """Return when copies, in their order, begin at the latest; `None` where they do not fit."""
        starts: list[float] = []
        at_s = self.end_s
        for copy_s in reversed(copies_s):
            at_s = self.start(at_s, copy_s)
            if at_s < self.free_s:
                return None
            starts.append(at_s)
        return starts[::-1]

    def fits(self, copies: Sequence[Copy]) -> bool:
        """Return whether copies, in their order, have room."""
        return self.starts([copy.copy_s for copy in copies]) is not None


def choose(copies: Sequence[Copy], window: Window) -> tuple[int, ...]:
    """Return which copies run, ascending.

    Args:
        copies: the smallest first.
        window: the link's time.
    """
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
    """Return those that save most for each second of the link, one after another while they fit; of equals the smaller."""
    worth = [copy.saved_s / copy.copy_s for copy in copies]
    chosen: list[int] = []
    for index in sorted(range(len(copies)), key=lambda index: -worth[index]):
        tried = sorted([*chosen, index])
        if window.fits([copies[each] for each in tried]):
            chosen = tried
    return tuple(chosen)


#: Those chosen, as the one chosen last and the others; `None`: nobody.
_Chosen = tuple[int, "_Chosen"] | None
#: When the copies chosen so far begin, what they save, and which they are.
_Point = tuple[float, float, _Chosen]


def _knapsack(copies: Sequence[Copy], window: Window, least_s: float) -> tuple[int, ...]:
    """Return the best set that saves more than `least_s`; nobody, where none was found."""
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
    """What copies save at most in so many seconds: if none grew, and a part of a copy were worth its part."""

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
    """Return the points that save more than all that use less of the link's time, those first that use least."""
    kept: list[_Point] = []
    for point in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def _thinned(points: list[_Point], limit: int) -> list[_Point]:
    """Return no more than `limit` points: of those that save about as much, the one that uses least time, and the last."""
    if len(points) <= limit:
        return points
    *most, last = points
    per_bucket = last[1] / (limit - 2)
    kept: dict[int, _Point] = {}
    for point in most:
        kept.setdefault(int(point[1] / per_bucket), point)
    return [*kept.values(), last]
