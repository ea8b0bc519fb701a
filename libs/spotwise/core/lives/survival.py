"""Lives of spot instances: a hazard by age, and the choice of a place for a request by load and life.

Law: a life that has not ended is only known to be longer (right censoring); one first seen at an age tells nothing of lives
that ended before that age (left truncation). The hazard is constant between bounds and drawn to the mean where few lives ended.

Law: a place costs its load's wait, plus the cost of an interruption times its chance before the request ends.
The chance follows from the place's age and hazard (`survival.py`), averaged over the possible lengths. A group's hazard is that
of the first end among its instances (`first_end`). On-demand instances have no hazard; ties go to the earlier.
Source: ours, on top of SpotServe, which ignores age. It helps only where kinds or ages differ in their hazard.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Life:
    """One instance's life, watched from age `first_seen_s` to `age_s`; `ended`: the cloud took it (it was not given back)."""

    age_s: float
    ended: bool
    first_seen_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.first_seen_s <= self.age_s < math.inf:
            raise ValueError(f"a lifetime is observed from an age of at least 0 to a later one: {self}")


@dataclass(frozen=True, slots=True)
class PiecewiseHazard:
    """Ends per second of age: `per_s[i]` from bound `from_s[i]` to the next; bounds ascend from 0."""

    from_s: tuple[float, ...]
    per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.from_s) != len(self.per_s) or not self.from_s or self.from_s[0] != 0:
            raise ValueError("a hazard needs as many rates as bounds, and the first bound is 0")
        if any(a >= b for a, b in pairwise(self.from_s)) or min(self.per_s) < 0:
            raise ValueError(f"bounds must ascend and no hazard be below 0: {self}")

    def survives(self, age_s: float, seconds: float) -> float:
        """Return the chance that an instance of that age survives so many seconds."""
        return math.exp(-self.expected_ends(age_s, seconds))

    def ends(self, age_s: float, seconds: float) -> float:
        """Return the chance that an instance of that age ends within so many seconds."""
        return -math.expm1(-self.expected_ends(age_s, seconds))

    def at(self, age_s: float) -> tuple[float, float]:
        """Return the hazard at an age, and the seconds from it until the next bound; infinite behind the last."""
        if age_s < 0:
            raise ValueError(f"an age ({age_s}) is at least 0")
        after = bisect_right(self.from_s, age_s)
        return self.per_s[after - 1], self.from_s[after] - age_s if after < len(self.from_s) else math.inf

    def mean_ends(self, age_s: float, seconds: Sequence[float]) -> float:
        """Return the chance that an instance of that age ends within one of some equally likely spans of seconds."""
        after = bisect_right(self.from_s, age_s)
        until_s = self.from_s[after] if after < len(self.from_s) else math.inf
        if after and min(seconds) >= 0 and age_s + max(seconds) <= until_s:  # nearly always: one search for all
            per_s, expm1 = -self.per_s[after - 1], math.expm1
            chances = [-expm1(per_s * (age_s + span_s - age_s)) for span_s in seconds]
        else:
            chances = [self.ends(age_s, span_s) for span_s in seconds]
        return sum(chances) / len(chances)

    def expected_s(self, age_s: float) -> float:
        """Return the expected remaining seconds at an age; infinite where the last hazard is 0."""
        if self.per_s[-1] == 0:
            return math.inf
        expected_s, alive, at_s = 0.0, 1.0, age_s
        for bound_s, rate in zip(self.from_s[1:], self.per_s, strict=False):
            if bound_s > at_s:
                ends = -math.expm1(-rate * (bound_s - at_s))
                expected_s += alive * (ends / rate if rate else bound_s - at_s)
                alive *= 1.0 - ends
                at_s = bound_s
        return expected_s + alive / self.per_s[-1]

    def expected_ends(self, age_s: float, seconds: float) -> float:
        """Return the hazard summed over so many seconds from an age on: of many such instances, the ends for each."""
        if age_s < 0 or seconds < 0:
            raise ValueError(f"an age ({age_s}) and seconds from it ({seconds}) are at least 0")
        first = bisect_right(self.from_s, age_s) - 1
        end_s = age_s + seconds
        ends = 0.0
        for index in range(first, len(self.from_s) - 1):
            until_s = self.from_s[index + 1]
            if until_s >= end_s:
                return ends + self.per_s[index] * (end_s - age_s)
            ends += self.per_s[index] * (until_s - age_s)
            age_s = until_s
        return ends + self.per_s[-1] * (end_s - age_s)


def first_end(instances: Iterable[tuple[PiecewiseHazard, float]]) -> PiecewiseHazard:
    """Return the hazard, by seconds from now, of the first end among instances given with their ages in seconds."""
    rate, changes = 0.0, []
    for hazard, age_s in instances:
        at = bisect_right(hazard.from_s, age_s) - 1
        rate += hazard.per_s[at]
        for bound_s, (before, after) in zip(hazard.from_s[at + 1 :], pairwise(hazard.per_s[at:]), strict=True):
            changes.append((bound_s - age_s, after - before))
    bounds, rates = [0.0], [rate]
    for in_s, change in sorted(changes):
        rate += change
        if in_s > bounds[-1]:
            bounds.append(in_s)
            rates.append(rate)
        else:
            rates[-1] = rate
    return PiecewiseHazard(tuple(bounds), tuple(max(0.0, rate) for rate in rates))


def fit_hazard(lives: Sequence[Life], pieces: int = 6, prior_ends: float = 4.0) -> PiecewiseHazard:
    """Return the hazard by age, 0 where no life ended, in up to `pieces` pieces with about as many ends in each.

    Args:
        prior_ends: ends at the mean hazard added to each piece; more of them trust age less.

    Raises:
        ValueError: no life was observed for any time, or an argument is out of range.
    """
    if pieces < 1 or prior_ends < 0:
        raise ValueError(f"pieces ({pieces}) must be at least 1 and prior_ends ({prior_ends}) at least 0")
    exposure_s = sum(life.age_s - life.first_seen_s for life in lives)
    if exposure_s <= 0:
        raise ValueError("no lifetime was observed for any time; give observed lifetimes")
    ends = sorted(life.age_s for life in lives if life.ended)
    if not ends:
        return PiecewiseHazard((0.0,), (0.0,))
    quantiles = {ends[max(0, len(ends) * piece // pieces - 1)] for piece in range(1, pieces)}
    oldest_s = max(life.age_s for life in lives)  # no life was watched beyond that
    bounds = [0.0, *sorted(bound for bound in quantiles if 0.0 < bound < oldest_s)]
    mean = len(ends) / exposure_s
    rates = []
    for start_s, until_s in pairwise([*bounds, math.inf]):
        ended = sum(start_s < end_s <= until_s or start_s == end_s == 0.0 for end_s in ends)
        seen_s = sum(max(0.0, min(life.age_s, until_s) - max(life.first_seen_s, start_s)) for life in lives)
        rates.append((ended + prior_ends) / (seen_s + prior_ends / mean) if seen_s or prior_ends else mean)
    return PiecewiseHazard(tuple(bounds), tuple(rates))


@dataclass(slots=True)
class Place:
    """A candidate: `age_s` in its `hazard` (`None`: it stays), `load_s` that its load costs the request; never changed."""

    name: str
    age_s: float
    hazard: PiecewiseHazard | None
    load_s: float


def interruption_chance(place: Place, remaining_s: Sequence[float]) -> float:
    """Return the chance of an interruption over equally likely remaining seconds; `ValueError` where `remaining_s` is empty."""
    if not remaining_s:
        raise ValueError("give at least one length that the request may have")
    return 0.0 if place.hazard is None else place.hazard.mean_ends(place.age_s, remaining_s)


def expected_cost_s(place: Place, remaining_s: Sequence[float], interruption_s: float) -> float:
    """Return the expected seconds that a place costs a request; `interruption_s` are the pause and the recomputation."""
    return interruption_chance(place, remaining_s) * interruption_s + place.load_s


def cheapest(places: Iterable[Place], remaining_s: Sequence[float], interruption_s: float) -> Place:
    """Return the place of the least expected cost, of equals the earlier; fastest where they come in order of their load.

    Raises:
        ValueError: there is no place, or no length.
    """
    best, least_s = None, 0.0
    for place in places:
        if best is None or place.load_s < least_s:  # else its load alone costs as much
            cost_s = expected_cost_s(place, remaining_s, interruption_s)
            if best is None or cost_s < least_s:
                best, least_s = place, cost_s
    if best is None:
        raise ValueError("give at least one place")
    return best
