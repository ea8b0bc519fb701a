"""Which instances to ask for and which to give back, once a configuration is chosen.

Law: Delta is what the choice takes of a type less what is held of it, starting instances included, those under notice not.
Delta > 0 asks for Delta as spot and, at the same time, for Delta on demand, so that nobody waits to learn that there is no
spot; what is too much when both have come is given back then. Delta < 0 gives back, on demand first, since that costs more
(SpotServe, section 4.1). A few instances more than the choice takes are kept for the next one that is taken away: a spare
pool, of the type that gives most to the choice. Spares can wait, so they are asked for as spot alone where that can be had.

Invariants: no type is asked for and given back at once; what serves and the spares are not given back; no more is asked for
than can be had, nor given back than is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.parallel.choice import ConfigChoice
from spotwise.core.parallel.instances import Supply


@dataclass(frozen=True, slots=True)
class FleetDelta:
    """What to change about a type; at most one of asking and giving back.

    Attributes:
        type_name: the kind of machine.
        ask_spot: instances to ask for as spot.
        ask_on_demand: on demand, at the same time.
        release_spot: to give back of those that are spot.
        release_on_demand: to give back of those on demand.
    """

    type_name: str
    ask_spot: int = 0
    ask_on_demand: int = 0
    release_spot: int = 0
    release_on_demand: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is to change."""
        return not (self.ask_spot or self.ask_on_demand or self.release_spot or self.release_on_demand)


def fleet_delta(
    choice: ConfigChoice | None, supplies: Sequence[Supply], spare_instances: int = 2
) -> tuple[FleetDelta, ...]:
    """Return what to change, an entry for each supply, in their order.

    Args:
        choice: what is to serve; with `None` nothing changes: what is held may be of use with what comes later.
        supplies: what can be had and what is held.
        spare_instances: to hold beyond what the choice takes.
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
        return FleetDelta(name, ask_spot=spot, ask_on_demand=min(lacking + spares_on_demand, more_on_demand))
    surplus = held - serving - spares
    on_demand = min(surplus, supply.held_on_demand)
    return FleetDelta(name, release_spot=surplus - on_demand, release_on_demand=on_demand)
