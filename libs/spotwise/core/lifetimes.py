"""Ranks spot instances for a request by load and by the chance of an interruption.

Law: an instance costs its load's wait, plus the cost of an interruption times its chance before the request ends.
The chance follows from the instance's age and its kind's hazard (`survival.py`), averaged over the possible lengths.
On-demand instances have no hazard; ties go to the earlier.
Source: ours, on top of SpotServe, which ignores age. It helps only where kinds or ages differ in their hazard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotwise.core.survival import PiecewiseHazard


@dataclass(frozen=True, slots=True)
class Place:
    """A candidate: `age_s` since its acquisition, `hazard` (`None` on demand), `load_s` that its load costs the request."""

    instance: str
    age_s: float
    hazard: PiecewiseHazard | None
    load_s: float


def interruption_chance(place: Place, remaining_s: Sequence[float]) -> float:
    """Return the chance of an interruption over equally likely remaining seconds; `ValueError` where `remaining_s` is empty."""
    if not remaining_s:
        raise ValueError("give at least one length that the request may have")
    if place.hazard is None:
        return 0.0
    return sum(place.hazard.ends(place.age_s, seconds) for seconds in remaining_s) / len(remaining_s)


def expected_cost_s(place: Place, remaining_s: Sequence[float], interruption_s: float) -> float:
    """Return the expected seconds that an instance costs a request; `interruption_s` are the pause and the recomputation."""
    return interruption_chance(place, remaining_s) * interruption_s + place.load_s


def rank(places: Iterable[Place], remaining_s: Sequence[float], interruption_s: float) -> list[Place]:
    """Return the places by expected cost, the cheapest first; of equals the earlier."""
    return sorted(places, key=lambda place: expected_cost_s(place, remaining_s, interruption_s))
