"""Purchasable instances and their prices by Unix time: from the fleet file, its file of prices, and the provider's market.

The market's price has precedence over the file of prices, and that over a type's own. Prices that were known stay, so that a
bill is right for the time in which each was in effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.fleet.keeper.events import PricedOffer
from spotwise.core.fleet.keeper.failed_starts import OfferKey
from spotwise.core.fleet.prices import PriceSeries, SpotPrice
from spotwise.core.messages.fleet import Market
from spotwise.files.fleet_file import PROVIDERS, FleetFile, TypeTerms
from spotwise.files.prices import PriceList


class FleetPrices:
    """The offers of a fleet file.

    Args:
        started_unix_s: when the times of the file of prices begin.
    """

    def __init__(self, started_unix_s: float) -> None:
        self._started_unix_s = started_unix_s
        self._fixed: dict[OfferKey, PriceSeries] = {}
        self._market: dict[tuple[str, str], PriceSeries] = {}

    def learn(self, prices: Iterable[SpotPrice]) -> bool:
        """Take the market's newest prices; tell whether one is new."""
        changed = False
        for each in prices:
            key = (each.type_name, each.zone)
            later = _then(self._market.get(key), each.since_s, each.per_h)
            changed |= later != self._market.get(key)
            self._market[key] = later
        return changed

    def offers(self, fleet: FleetFile, listed: PriceList | None, now: float) -> tuple[PricedOffer, ...]:
        """Return the offers, and the prices of zones that the provider chooses among."""
        offers = []
        for kind in fleet.types:
            for market in Market:
                terms = kind.terms(market)
                if terms is None:
                    continue
                for zone in ("",) if PROVIDERS[fleet.provider].chooses_zone or not kind.zones else kind.zones:
                    series = self._of_file(kind, market, zone, terms.price_per_h, listed, now)
                    if market is Market.SPOT and (zones := self._zones_of(kind)):
                        series = _cheapest(list(zones.values()))
                        offers += [PricedOffer(kind.name, market, 0, prices, name) for name, prices in zones.items()]
                    offers.append(PricedOffer(kind.name, market, terms.most, series, zone))
        return tuple(offers)

    def _of_file(
        self, kind: TypeTerms, market: Market, zone: str, per_h: float, listed: PriceList | None, now: float
    ) -> PriceSeries:
        if listed is not None:
            series = listed.series.get((kind.name, zone or None, market)) or listed.series.get(
                (kind.name, None, market)
            )
            if series is not None:
                return PriceSeries(tuple(self._started_unix_s + at_s for at_s in series.times_s), series.per_h)
        key = (kind.name, market, zone)
        known = self._fixed.get(key)
        self._fixed[key] = _then(known, 0.0 if known is None else now, per_h)
        return self._fixed[key]

    def _zones_of(self, kind: TypeTerms) -> dict[str, PriceSeries]:
        """The market's prices by zone: those of the file's zones, or all."""
        return {
            zone: series
            for (name, zone), series in self._market.items()
            if name == kind.name and (not kind.zones or zone in kind.zones)
        }


def _then(known: PriceSeries | None, since_s: float, per_h: float) -> PriceSeries:
    """Return a price that is `per_h` from a time on."""
    if known is None:
        return PriceSeries((since_s,), (per_h,))
    if known.per_h[-1] == per_h or since_s <= known.times_s[-1]:
        return known
    return PriceSeries((*known.times_s, since_s), (*known.per_h, per_h))


def _cheapest(zones: list[PriceSeries]) -> PriceSeries:
    """Return the lowest of some prices at each time."""
    times_s = tuple(sorted({at_s for series in zones for at_s in series.times_s}))
    return PriceSeries(times_s, tuple(min(series.at(at_s) for series in zones) for at_s in times_s))
