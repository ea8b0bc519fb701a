"""Where a request is placed if instances go: how long it will run against how long each will live.

Law: a request costs its user the wait that the load of an instance makes, and, with the chance that the instance goes before
the request has ended, the cost of an interruption. The chance follows from the instance's age and the hazard of its kind
(`survival.py`), averaged over the lengths that the request may have: with heavy tails the mean length says too little. An
instance that the cloud does not take (on-demand) has no hazard.

Source: ours, on top of SpotServe, which places without regard to age. Worth something only where kinds or ages differ in their
hazard: if all go alike, this is the order by load.

Invariants: the chance rises with the remaining seconds; with equal chances the order is that by load; ties go to the earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotwise.core.survival import PiecewiseHazard


@dataclass(frozen=True, slots=True)
class Place:
    """An instance that may take a request.

    Attributes:
        instance: its id.
        age_s: since it was acquired.
        hazard: of its kind; `None` where the cloud does not take it.
        load_s: seconds that its load would cost the request.
    """

    instance: str
    age_s: float
    hazard: PiecewiseHazard | None
    load_s: float


def interruption_chance(place: Place, remaining_s: Sequence[float]) -> float:
    """Return the chance that a request is interrupted on an instance.

    Args:
        place: the instance.
        remaining_s: seconds that the request may still run, each as likely; one, where it is known.

    Raises:
        ValueError: no length is given.
    """
    if not remaining_s:
        raise ValueError("give at least one length that the request may have")
    if place.hazard is None:
        return 0.0
    return sum(place.hazard.ends(place.age_s, seconds) for seconds in remaining_s) / len(remaining_s)


def expected_cost_s(place: Place, remaining_s: Sequence[float], interruption_s: float) -> float:
    """Return the seconds that placing a request on an instance is expected to cost its user.

    Args:
        place: the instance.
        remaining_s: seconds that the request may still run, each as likely.
        interruption_s: what an interruption costs: the pause, and what is computed again.
    """
    return interruption_chance(place, remaining_s) * interruption_s + place.load_s


def rank(places: Iterable[Place], remaining_s: Sequence[float], interruption_s: float) -> list[Place]:
    """Return the places by expected cost, the cheapest first; of equals the earlier."""
    return sorted(places, key=lambda place: expected_cost_s(place, remaining_s, interruption_s))
