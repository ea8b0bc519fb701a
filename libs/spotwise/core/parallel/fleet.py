"""Instances to request and to release once a configuration is chosen. Wired by step 6A.

Law: Delta is what the choice takes of a type less what is held or starting; instances under notice do not count.
Delta > 0 requests Delta as spot and, at the same time, Delta on demand; the surplus is released once both have come.
Delta < 0 releases on-demand instances first, as they cost more (SpotServe, section 4.1).
Spares are held for the next interruption, of the type that contributes most; they are requested as spot where possible.
No type is requested and released at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.parallel.choice import ConfigChoice
from spotwise.core.parallel.instances import Supply


@dataclass(frozen=True, slots=True)
class FleetDelta:
    """Changes to a type's instances: requests (of both kinds at the same time), or releases, or neither."""

    type_name: str
    request_spot: int = 0
    request_on_demand: int = 0
    release_spot: int = 0
    release_on_demand: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether no instance is requested or released."""
        return not (self.request_spot or self.request_on_demand or self.release_spot or self.release_on_demand)


def fleet_delta(
    choice: ConfigChoice | None, supplies: Sequence[Supply], spare_instances: int = 2
) -> tuple[FleetDelta, ...]:
    """Return the changes for each supply, in their order; none where `choice` is `None`.
    `spare_instances`: held beyond what the choice takes.
    """
    if choice is None:
        return tuple(FleetDelta(supply.type.name) for supply in supplies)
    takes = {share.type.name: share.instances for share in choice.shares}
    main = max(choice.shares, key=lambda share: share.instances).type.name  # of equals the first
    return tuple(
        _delta(supply, takes.get(supply.type.name, 0), spare_instances if supply.type.name == main else 0)
        for supply in supplies
    )


def _delta(supply: Supply, serving: int, spares: int) -> FleetDelta:
    name, held = supply.type.name, supply.held
    more_spot, more_on_demand = supply.spot - supply.held_spot, supply.on_demand - supply.held_on_demand
    if held < serving + spares:
        lacking = max(0, serving - held)
        spot = min(serving + spares - held, more_spot)
        spares_on_demand = serving + spares - held - lacking if not more_spot else 0
        return FleetDelta(name, request_spot=spot, request_on_demand=min(lacking + spares_on_demand, more_on_demand))
    surplus = held - serving - spares
    on_demand = min(surplus, supply.held_on_demand)
    return FleetDelta(name, release_spot=surplus - on_demand, release_on_demand=on_demand)
