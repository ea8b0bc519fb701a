"""The fleet of a report by type and market: what is held, what is late, and what can be bought where at which price.

Law: held are running instances and starting ones that are not late, none under notice or being given back, and those that are
bought but not listed yet. A market with a late instance sells nothing until that is given back; nor does an offer that rests.
All that is listed and not gone counts for the most that the mesh may have at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import FleetInstance, FleetReported, InstanceState, Market, Purchase
from spotwise.core.parallel.instances import InstanceType, Supply


@dataclass(frozen=True, slots=True)
class ZoneRoom:
    """Instances that a zone sells at a price, dollars an hour; no zone: the provider chooses."""

    zone: str
    price_per_h: float
    room: int


@dataclass(frozen=True, slots=True)
class MarketState:
    """A type's instances in one market.

    Attributes:
        running, starting, late: those that stay; `coming`: bought, not listed yet.
        zones: zones that sell it, the cheapest first.
        prices: dollars an hour of each that is held, the cheapest first, and then of each that can be bought.
    """

    running: tuple[FleetInstance, ...] = ()
    starting: tuple[FleetInstance, ...] = ()
    late: tuple[FleetInstance, ...] = ()
    coming: int = 0
    zones: tuple[ZoneRoom, ...] = ()
    prices: tuple[float, ...] = ()

    @property
    def price_per_h(self) -> float | None:
        """Dollars an hour, the mean of those that are held, or of the cheapest offer; `None`: there are none."""
        return math.fsum(self.prices[: self.held]) / self.held if self.held else next(iter(self.prices), None)

    @property
    def held(self) -> int:
        """Instances that are there or will be."""
        return len(self.running) + len(self.starting) + self.coming

    @property
    def requestable(self) -> int:
        """Instances that can be bought."""
        return sum(zone.room for zone in self.zones)

    @property
    def most(self) -> int:
        """Both."""
        return self.held + self.requestable


_NONE = MarketState()


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet by type and market; `price_per_h`: dollars an hour of all that stays or comes."""

    markets: Mapping[tuple[str, Market], MarketState]
    price_per_h: float

    def market(self, type_name: str, market: Market) -> MarketState:
        """Return a type's instances in a market."""
        return self.markets.get((type_name, market), _NONE)

    def without_offers(self, keys: Iterable[tuple[str, Market]]) -> FleetState:
        """Return the fleet without what some markets sell."""
        avoided = {key: found for key in keys if (found := self.markets.get(key)) is not None and found.zones}
        bare = {key: replace(found, zones=(), prices=found.prices[: found.held]) for key, found in avoided.items()}
        return replace(self, markets={**self.markets, **bare}) if bare else self

    def held(self, type_name: str) -> int:
        """Return a type's held instances."""
        return sum(self.market(type_name, market).held for market in Market)

    def running(self, type_name: str) -> int:
        """Return a type's running instances."""
        return sum(len(self.market(type_name, market).running) for market in Market)

    def surplus(self, type_name: str, wanted: Mapping[Market, int], *, in_all: bool) -> int:
        """Return how many late and running instances of a type are too many.

        Args:
            in_all: an instance too many of one market counts only as far as the other market has those that it lacks;
                none does while instances of the type start. Late ones do not count: they go by themselves (`late_starts`).
        """
        markets = [(self.market(type_name, market), wanted.get(market, 0)) for market in Market]
        excess = [len(found.running) - count for found, count in markets]
        if not in_all:
            return sum(len(found.late) + max(0, each) for (found, _), each in zip(markets, excess, strict=True))
        is_complete = all(not found.starting and not found.coming for found, _ in markets)
        return max(0, sum(excess)) if is_complete else 0

    def supplies(self, types: Sequence[InstanceType]) -> list[Supply]:
        """Return what the optimizer may choose from, in the order of types."""
        found = []
        for each in types:
            spot, on_demand = (self.market(each.name, market) for market in (Market.SPOT, Market.ON_DEMAND))
            priced = replace(each, spot_price_per_h=spot.price_per_h, on_demand_price_per_h=on_demand.price_per_h)
            found.append(
                Supply(priced, spot.most, on_demand.most, spot.held, on_demand.held, spot.prices, on_demand.prices)
            )
        return found

    def supplies_of(self, types: Sequence[InstanceType], instances: Mapping[str, int]) -> list[Supply]:
        """Return so many instances of each type, and no more of them, at present prices."""
        found = []
        for each in types:
            prices = [self.market(each.name, market).price_per_h for market in Market]
            price = min((price for price in prices if price is not None), default=0.0)
            count = instances.get(each.name, 0)
            found.append(Supply(replace(each, spot_price_per_h=price), count, 0, count))
        return found


def fleet_state(
    report: FleetReported,
    types: Sequence[FleetType],
    coming: Sequence[tuple[Purchase, int]],
    releasing: Collection[str],
    late_factor: float,
    now: float,
) -> FleetState:
    """Return the fleet of a report.

    Args:
        coming: purchases with the instances of each that are not listed yet.
        releasing: ids of instances that are being given back.
    """
    markets, price_per_h = {}, 0.0
    for each in types:
        for market in Market:
            found = _market(report, each, market, coming, releasing, late_factor * each.start_s, now)
            markets[each.name, market] = found
            there = (*found.running, *found.starting, *found.late)
            price_per_h += math.fsum(instance.price_per_h for instance in there)
    price_per_h += math.fsum(count * _coming_price(report, purchase) for purchase, count in coming)
    return FleetState(markets, price_per_h)


def _market(
    report: FleetReported,
    fleet_type: FleetType,
    market: Market,
    coming: Sequence[tuple[Purchase, int]],
    releasing: Collection[str],
    late_after_s: float,
    now: float,
) -> MarketState:
    listed = [
        instance
        for instance in report.instances
        if (instance.type_name, instance.market) == (fleet_type.name, market)
        and instance.state is not InstanceState.GONE
    ]
    bought = [
        (purchase, count)
        for purchase, count in coming
        if (purchase.type_names[0], purchase.market) == (fleet_type.name, market)
    ]
    staying = [each for each in listed if stays(each) and each.id not in releasing]
    late = tuple(
        each for each in staying if each.state is InstanceState.STARTING and now - each.launched_s > late_after_s
    )
    offers = sorted(
        (offer for offer in report.offers if (offer.type_name, offer.market) == (fleet_type.name, market)),
        key=lambda offer: (offer.price_per_h, offer.zone),
    )
    zones = []
    for offer in offers:
        taken = sum(offer.zone in ("", each.zone) or not each.zone for each in listed)
        taken += sum(count for each, count in bought if offer.zone in ("", each.zone) or not each.zone)
        if not late and offer.refused_until_s <= now and offer.most > taken:
            zones.append(ZoneRoom(offer.zone, offer.price_per_h, offer.most - taken))
    held = [each for each in staying if each not in late]
    known = [each.price_per_h for each in held]
    known += [_coming_price(report, purchase) for purchase, count in bought for _ in range(count)]
    return MarketState(
        tuple(each for each in held if each.state is InstanceState.RUNNING),
        tuple(each for each in held if each.state is InstanceState.STARTING),
        late,
        len(known) - len(held),
        tuple(zones),
        (*sorted(known), *(zone.price_per_h for zone in zones for _ in range(zone.room))),
    )


def stays(instance: FleetInstance) -> bool:
    """Return whether an instance is there and not under notice."""
    return instance.leaves_at_s is None and instance.state in (InstanceState.STARTING, InstanceState.RUNNING)


def _coming_price(report: FleetReported, purchase: Purchase) -> float:
    """Return what a bought instance costs; the most that it may cost where its zone has no offer."""
    prices = {
        offer.zone: offer.price_per_h
        for offer in report.offers
        if (offer.type_name, offer.market) == (purchase.type_names[0], purchase.market)
    }
    return prices.get(purchase.zone, max(prices.values(), default=0.0))
