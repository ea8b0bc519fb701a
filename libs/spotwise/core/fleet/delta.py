"""Computes purchases and surplus from the targets of each type, and the instances to give back first.

Law: Delta is what a type's target takes less what is held. While the present instances do not meet the demand, what lacks as
spot is bought on demand at the same time, and the surplus is given back once both have come (SpotServe, section 4.1).
Spares are not bought twice. A cheaper market replaces a dearer one by buying first.
No type is bought and given back at once; nothing is bought above the budget: what is least urgent is left out first.

Law: a surplus is given back once it has lasted for `hold_s` without a break, while running instances have all that the targets
take and nothing of the type is bought. A fleet above its budget makes room at once, and so does one whose budget has kept out
what serves for `hold_s`; then no more is given back than that takes.
Of a type the dearest first, of equal prices on demand first, but never an on-demand one of the floor. In a market late
ones first, then those whose devices serve nothing, then those that the provider is expected to take soonest, then by id.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

from spotwise.core.fleet.lasting import Lasting
from spotwise.core.fleet.learned_hazards import LearnedHazards
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState
from spotwise.core.fleet.targets import TypeTarget
from spotwise.core.messages.fleet import FleetInstance, LearnedLives, Market

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
    """Instances of a type and market to buy, below a price in dollars an hour; `None`: at any."""

    type_name: str
    market: Market
    count: int
    urgency: Urgency
    below_per_h: float | None = None


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
        meets_demand: tells whether the running instances of all types meet the demand.
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
            if each.below_per_h is not None and zone_price > each.below_per_h:
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


@dataclass(frozen=True, slots=True)
class Surplus:
    """What is given back now.

    Attributes:
        due: instances of each type.
        waiting_s: seconds until the surplus of each other type is due.
        makes_room: the budget needs it, `needed_per_h` dollars an hour of it.
    """

    due: dict[str, int]
    waiting_s: dict[str, float]
    makes_room: bool
    needed_per_h: float

    @property
    def reason(self) -> str:
        """Why it is given back."""
        return "the budget has no room for it" if self.makes_room else "more than the load needs"


class Surpluses:
    """The surplus of each type, and for how long it has lasted."""

    def __init__(self, type_names: Sequence[str], policy: FleetPolicy) -> None:
        self._type_names = tuple(type_names)
        self._policy = policy
        self._lasting = Lasting()
        self._blocked = Lasting()

    def update(
        self,
        state: FleetState,
        targets: Sequence[TypeTarget],
        bought: Sequence[ZonePurchase],
        lacking_per_h: float,
        now: float,
    ) -> Surplus:
        """Return what has been too many for long enough.

        Args:
            state: the fleet as it is.
            targets: what it should be.
            bought: what is bought now.
            lacking_per_h: dollars an hour of what serves that the budget does not have beside what is held.
            now: Unix time.
        """
        policy, by_name = self._policy, {each.type_name: each for each in targets}
        is_covered = bool(targets) and all(state.running(each.type_name) >= each.serving for each in targets)
        budget_per_h = math.inf if policy.budget_per_h is None else policy.budget_per_h
        over_per_h = max(0.0, state.price_per_h - budget_per_h * (1 + ROUNDING))
        blocked_s = self._blocked.lasts_s("", lacking_per_h > 0, now)
        makes_room = over_per_h > 0 or (blocked_s is not None and blocked_s >= policy.hold_s)
        due: dict[str, int] = {}
        waiting_s: dict[str, float] = {}
        for name in self._type_names:
            target = by_name.get(name)
            wanted = {} if target is None else {Market.SPOT: target.spot, Market.ON_DEMAND: target.on_demand}
            surplus = state.surplus(name, wanted, in_all=not makes_room)
            is_free = (is_covered or makes_room) and not any(purchase.type_name == name for purchase in bought)
            lasted_s = self._lasting.lasts_s(name, surplus > 0 and is_free, now)
            if lasted_s is not None and (makes_room or lasted_s >= policy.hold_s):
                due[name] = surplus
            elif lasted_s is not None:
                waiting_s[name] = policy.hold_s - lasted_s
        return Surplus(due, waiting_s, makes_room, max(over_per_h, lacking_per_h) if makes_room else math.inf)


def first_given_back(
    types: Collection[str],
    state: FleetState,
    lives: Sequence[LearnedLives],
    serving: Collection[str],
    floor: int,
    now: float,
) -> list[FleetInstance]:
    """Return the late and running instances of types that may be given back, in order; `serving`: ids of those in use."""
    on_demand = sum(len(found.running) for (_, market), found in state.markets.items() if market is Market.ON_DEMAND)
    free = max(0, on_demand - floor)
    hazards = LearnedHazards(lives)
    ordered: list[tuple[tuple[float | bool | str, ...], FleetInstance]] = []
    for (type_name, market), found in state.markets.items():
        if type_name in types:
            ordered += [
                (
                    (
                        each not in found.late,
                        -each.price_per_h,
                        market is Market.SPOT,
                        each.id in serving,
                        hazards.remaining_s(each, now),
                        each.id,
                    ),
                    each,
                )
                for each in (*found.late, *found.running)
            ]
    given_back = []
    for key, each in sorted(ordered, key=lambda entry: entry[0]):
        is_late = not key[0]
        if each.market is Market.ON_DEMAND and not is_late:
            if not free:
                continue
            free -= 1
        given_back.append(each)
    return given_back
