"""The terms of a simulated market, as a fleet file and the options of a mesh have them."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.fleet.keeper.events import PricedOffer
from spotwise.core.fleet.keeper.failed_starts import SHORTEST_S
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType


@dataclass(frozen=True, slots=True)
class PurchaseTerms:
    """What can be bought, and what for.

    Attributes:
        kind: the type of all instances.
        offers: offers of that type.
        limit: instances at once; `None` for as many as there are.
        refused_s: an offer that was refused is not asked for for so long.
    """

    kind: FleetType
    offers: tuple[PricedOffer, ...]
    policy: FleetPolicy
    limit: int | None = None
    refused_s: float = SHORTEST_S
