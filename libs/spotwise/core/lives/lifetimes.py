"""Chooses a place for a request by load and by the chance of an interruption.

Law: a place costs its load's wait, plus the cost of an interruption times its chance before the request ends.
The chance follows from the place's age and hazard (`survival.py`), averaged over the possible lengths. A group's hazard is that
of the first end among its instances (`first_end`). On-demand instances have no hazard; ties go to the earlier.
Source: ours, on top of SpotServe, which ignores age. It helps only where kinds or ages differ in their hazard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotwise.core.lives.survival import PiecewiseHazard


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
