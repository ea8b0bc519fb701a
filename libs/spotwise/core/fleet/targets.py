"""The instances of each type and market that a choice takes, with the spares and the on-demand floor.

Law: a type's instances are of the market that is cheaper by `gain`; at closer prices those that are held stay. Spares are of
the type that contributes most, of equals the first. The floor turns spot instances into on-demand ones where such are held, and
then where that costs least. No target is above what is held and can be bought.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState, MarketState
from spotwise.core.messages.fleet import Market, WantedInstances
from spotwise.core.parallel.instances import ConfigChoice


@dataclass(frozen=True, slots=True)
class TypeTarget:
    """A type's wanted instances: `serving` of the choice and `spares`, together `spot` and `on_demand` instances; of the latter
    `floor` may not be spot.
    """

    type_name: str
    serving: int
    spares: int
    spot: int
    on_demand: int
    floor: int = 0

    @property
    def instances(self) -> int:
        """All of them."""
        return self.serving + self.spares

    @property
    def wanted(self) -> WantedInstances:
        """The target as it is told: the spares apart, spot ones first."""
        spare_spot = min(self.spot, self.spares)
        return WantedInstances(
            self.type_name, self.spot - spare_spot, self.on_demand - (self.spares - spare_spot), self.spares
        )

    def price_per_h(self, state: FleetState) -> float:
        """Return the dollars an hour of all of them, those first that are held."""
        return math.fsum(
            price
            for market, count in ((Market.SPOT, self.spot), (Market.ON_DEMAND, self.on_demand))
            for price in state.market(self.type_name, market).prices[:count]
        )


def first_targets(type_names: Sequence[str], state: FleetState, policy: FleetPolicy) -> tuple[TypeTarget, ...]:
    """Return what is wanted while the model is not known: what is held, and where that is nothing or below the floor, the
    cheapest instance that is sold within the budget; a spot instance where the floor cannot be had and nothing is held.
    """
    budget_per_h = math.inf if policy.budget_per_h is None else policy.budget_per_h
    floor = policy.on_demand_floor

    def is_sold(market: Market) -> bool:
        zones = [zone for name in type_names for zone in state.market(name, market).zones]
        return any(state.price_per_h + zone.price_per_h <= budget_per_h for zone in zones)

    if not is_sold(Market.ON_DEMAND) and not any(map(state.held, type_names)):
        floor = 0
    markets = (Market.ON_DEMAND,) if floor else (Market.SPOT, Market.ON_DEMAND)
    held = {name: sum(state.market(name, market).held for market in markets) for name in type_names}
    lacking = max(1, floor) - sum(held.values())
    offers = [
        (place, zones[0].price_per_h, name, market)
        for place, market in enumerate(markets)
        for name in type_names
        if (zones := state.market(name, market).zones)
    ]
    bought = min(offers, key=lambda offer: offer[:2]) if offers and lacking > 0 else None
    targets = []
    for name in type_names:
        spot, on_demand = (state.market(name, market) for market in (Market.SPOT, Market.ON_DEMAND))
        more_spot = more_on_demand = 0
        if bought is not None and bought[2] == name:
            more_spot = min(lacking, spot.requestable) if bought[3] is Market.SPOT else 0
            more_on_demand = min(lacking, on_demand.requestable) if bought[3] is Market.ON_DEMAND else 0
        wanted_spot, wanted_on_demand = spot.held + more_spot, on_demand.held + more_on_demand
        if wanted_spot + wanted_on_demand:
            in_floor = min(floor, wanted_on_demand)
            serving = wanted_spot + wanted_on_demand
            targets.append(TypeTarget(name, serving, 0, wanted_spot, wanted_on_demand, in_floor))
    return tuple(targets)


def fleet_targets(choice: ConfigChoice | None, state: FleetState, policy: FleetPolicy) -> tuple[TypeTarget, ...]:
    """Return the wanted instances of each type of a choice, in its order."""
    if choice is None:
        return ()
    serving = {share.type.name: share.instances for share in choice.shares}
    main = max(choice.shares, key=lambda share: share.instances).type.name
    targets = []
    for name, count in serving.items():
        spot, on_demand = (state.market(name, market) for market in (Market.SPOT, Market.ON_DEMAND))
        spares = min(policy.spare_instances if name == main else 0, max(0, spot.most + on_demand.most - count))
        targets.append(TypeTarget(name, count, spares, *_split(count + spares, spot, on_demand, policy.gain)))
    return with_floor(targets, state, policy.on_demand_floor)


def with_floor(targets: Sequence[TypeTarget], state: FleetState, floor: int) -> tuple[TypeTarget, ...]:
    """Return the targets with so many on-demand instances in all, as far as there are any to turn."""
    found = list(targets)
    lacking = floor - sum(each.on_demand for each in found)
    moves = sorted(
        (not is_held, premium, place) for place, each in enumerate(found) for is_held, premium in _moves(each, state)
    )
    for _, _, place in moves[: max(0, lacking)]:
        found[place] = replace(found[place], spot=found[place].spot - 1, on_demand=found[place].on_demand + 1)
    left = floor
    for place, each in enumerate(found):
        found[place] = replace(each, floor=min(left, each.on_demand))
        left -= found[place].floor
    return tuple(found)


def _moves(target: TypeTarget, state: FleetState) -> list[tuple[bool, float]]:
    """Return for each spot instance that may be on demand whether such a one is held, and what it costs more."""
    spot, on_demand = (state.market(target.type_name, market) for market in (Market.SPOT, Market.ON_DEMAND))
    premium = (on_demand.price_per_h or 0.0) - (spot.price_per_h or 0.0)
    held = on_demand.held - target.on_demand
    return [(number < held, premium) for number in range(min(target.spot, on_demand.most - target.on_demand))]


def _split(instances: int, spot: MarketState, on_demand: MarketState, gain: float) -> tuple[int, int]:
    """Return how many of so many instances are spot and how many on demand."""
    if spot.price_per_h is None or on_demand.price_per_h is None:
        count = min(instances, (on_demand if spot.price_per_h is None else spot).most)
        return (0, count) if spot.price_per_h is None else (count, 0)
    kept_spot = kept_on_demand = 0
    if min(spot.price_per_h, on_demand.price_per_h) > (1 - gain) * max(spot.price_per_h, on_demand.price_per_h):
        kept_spot = min(instances, spot.held)
        kept_on_demand = min(instances - kept_spot, on_demand.held)
    rest = instances - kept_spot - kept_on_demand
    if spot.price_per_h <= on_demand.price_per_h:
        more = min(rest, spot.most - kept_spot)
        return kept_spot + more, kept_on_demand + min(rest - more, on_demand.most - kept_on_demand)
    more = min(rest, on_demand.most - kept_on_demand)
    return kept_spot + min(rest - more, spot.most - kept_spot), kept_on_demand + more
