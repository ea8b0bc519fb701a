"""Hazard of an instance, the rate at which its provider takes it, from the lives that the fleet has observed.

Law: a spot instance has the hazard of its type in its zone; where no such instance ended yet, that of its type without a zone.
Without an end in either, and on demand, none is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from spotwise.core.lives.survival import PiecewiseHazard
from spotwise.core.messages.fleet import FleetInstance, LearnedLives, Market


class LearnedHazards:
    """The hazards of a report's lives, by type and zone."""

    def __init__(self, lives: Iterable[LearnedLives]) -> None:
        self._by_kind = {(each.type_name, each.zone): each.hazard for each in lives if any(each.hazard.per_s)}

    def of(self, instance: FleetInstance) -> PiecewiseHazard | None:
        """Return the hazard of an instance; `None` where it stays, or where none is known."""
        if instance.market is not Market.SPOT:
            return None
        known = self._by_kind.get((instance.type_name, instance.zone))
        return known or self._by_kind.get((instance.type_name, ""))

    def remaining_s(self, instance: FleetInstance, now: float) -> float:
        """Return the expected seconds until the provider takes an instance; infinite where no hazard is known."""
        hazard = self.of(instance)
        return math.inf if hazard is None else hazard.expected_s(max(0.0, now - instance.launched_s))
