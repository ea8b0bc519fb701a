"""What is bought and what is too many, once targets are known.

Law: Delta is what a type's target takes less what is held. While the present instances do not meet the demand, what lacks as
spot is bought on demand at the same time, and the surplus is given back once both have come (SpotServe, section 4.1).
Spares are not bought twice. A cheaper market replaces a dearer one by buying first.
No type is bought and given back at once; nothing is bought above the budget: what is least urgent is left out first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.targets import TypeTarget
from spotwise.core.messages.market import Market

#: Sums of prices differ by so much of the budget from one another, by their order.
ROUNDING = 1e-9


class Urgency(IntEnum):
    """What an instance is bought for, the most urgent first."""

    SERVES = 0
    SPARE = 1
    CHEAPER = 2
    HEDGE = 3


@dataclass(frozen=True, slots=True)
class WantedPurchase:
    """Instances of a type and market to buy, below a price in dollars an hour."""

    type_name: str
    market: Market
    count: int
    urgency: Urgency
    below_per_h: float = math.inf


@dataclass(frozen=True, slots=True)
class ZonePurchase:
    """Instances of a type and market to buy in a zone."""

    type_name: str
    market: Market
    zone: str
    count: int


def wanted_purchases(
    target: TypeTarget, state: FleetState, *, meets_demand: bool, shift_gain: float | None
) -> list[WantedPurchase]:
    """Return what a type lacks.

    Args:
        meets_demand: whether the running instances of all types do.
        shift_gain: share by which another market's instance is cheaper that replaces one; `None`: not yet.
    """
    name = target.type_name
    spot, on_demand = (state.market(name, market) for market in (Market.SPOT, Market.ON_DEMAND))
    lacking = max(0, target.instances - spot.held - on_demand.held)
    serving = max(0, target.serving - spot.held - on_demand.held)
    from_spot = min(lacking, max(0, target.spot - spot.held), spot.requestable)
    from_on_demand = min(lacking - from_spot, on_demand.requestable)
    from_spot += min(lacking - from_spot - from_on_demand, spot.requestable - from_spot)
    floor = min(max(0, target.floor - on_demand.held - from_on_demand), on_demand.requestable - from_on_demand)
    hedge = 0 if meets_demand else min(from_spot, serving, on_demand.requestable - from_on_demand - floor)
    on_demand_first = min(from_on_demand, max(serving, target.floor - on_demand.held))
    spot_first = min(from_spot, max(0, serving - on_demand_first))
    found = [
        WantedPurchase(name, Market.ON_DEMAND, on_demand_first + floor, Urgency.SERVES),
        WantedPurchase(name, Market.SPOT, spot_first, Urgency.SERVES),
        WantedPurchase(name, Market.SPOT, from_spot - spot_first, Urgency.SPARE),
        WantedPurchase(name, Market.ON_DEMAND, from_on_demand - on_demand_first, Urgency.SPARE),
        WantedPurchase(name, Market.ON_DEMAND, hedge, Urgency.HEDGE),
    ]
    if shift_gain is not None and not lacking and not floor:
        found += [
            WantedPurchase(
                name,
                market,
                min(wanted - there.held, there.requestable),
                Urgency.CHEAPER,
                (1 - shift_gain) * (other.price_per_h or 0.0),
            )
            for market, wanted, there, other in (
                (Market.SPOT, target.spot, spot, on_demand),
                (Market.ON_DEMAND, target.on_demand, on_demand, spot),
            )
        ]
    return [each for each in found if each.count > 0]


def is_shifting(target: TypeTarget, state: FleetState) -> bool:
    """Return whether a type has all of its instances, and some of them in the dearer market."""
    spot, on_demand = (state.market(target.type_name, market) for market in (Market.SPOT, Market.ON_DEMAND))
    has_all = spot.held + on_demand.held >= target.instances
    return has_all and (spot.held < target.spot or on_demand.held < target.on_demand)


def within_budget(
    wanted: Sequence[WantedPurchase], state: FleetState, budget_per_h: float | None
) -> tuple[list[ZonePurchase], float]:
    """Return the purchases by zone, the cheapest first, that keep the fleet within the budget, the most urgent ones first; and
    the dollars an hour that the first one that serves lacks.
    """
    price_per_h, lacking_per_h = state.price_per_h, 0.0
    most = sum(each.count for each in wanted)
    rooms: dict[tuple[str, Market], list[tuple[str, float]]] = {}
    counts: dict[tuple[str, Market, str], int] = defaultdict(int)
    for each in sorted(wanted, key=lambda each: each.urgency):
        key = each.type_name, each.market
        room = rooms.setdefault(
            key,
            [(zone.zone, zone.price_per_h) for zone in state.market(*key).zones for _ in range(min(zone.room, most))],
        )
        for _ in range(min(each.count, len(room))):
            zone, zone_price = room[0]
            if zone_price > each.below_per_h:
                break
            if budget_per_h is not None and price_per_h + zone_price > budget_per_h * (1 + ROUNDING):
                if each.urgency is Urgency.SERVES and not lacking_per_h:
                    lacking_per_h = price_per_h + zone_price - budget_per_h
                break
            room.pop(0)
            price_per_h += zone_price
            counts[*key, zone] += 1
    return [ZonePurchase(*key, count) for key, count in counts.items()], lacking_per_h


def cost_beside(targets: Sequence[TypeTarget], state: FleetState) -> float:
    """Return the dollars an hour of the fleet once what serves has been bought beside what is held."""
    return state.price_per_h + sum(
        max(0, each.serving - state.held(each.type_name))
        * min(
            (zone.price_per_h for market in Market for zone in state.market(each.type_name, market).zones),
            default=0.0,
        )
        for each in targets
    )
