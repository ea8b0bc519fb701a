"""Prices of instances over time, by type, zone and market. A price holds until the next one of its type, zone and market; a
bill is the integral over an instance's stay, exact to the moment of a change, as where a market bills by the second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import Market
from spotwise.files.tables import TraceError, csv_rows

COLUMNS = ("time_s", "instance_type", "market", "price_per_h")
_ZONE = "zone"


def parse_market(text: str) -> Market:
    """Return the market of a name, `on-demand` included; raises ValueError for another name."""
    return Market(text.lower().replace("-", "_"))


@dataclass(frozen=True, slots=True)
class PriceList:
    """All prices of a file, `source`; by type, zone (`None`: every zone without a price of its own) and market."""

    source: str
    series: Mapping[tuple[str, str | None, Market], PriceSeries]

    @classmethod
    def flat(cls, per_h: float) -> PriceList:
        """Return one price for everything, under the type ``""``."""
        always = PriceSeries((0.0,), (per_h,))
        return cls(f"{per_h:g} $/h", {("", None, market): always for market in Market})

    @property
    def types(self) -> tuple[str, ...]:
        """Instance types, in the file's order."""
        return tuple(dict.fromkeys(instance_type for instance_type, _, _ in self.series))

    def of(self, instance_type: str, zone: str | None, market: Market, from_s: float) -> PriceSeries:
        """Return the prices of an instance in a zone (`None`: unknown) that is paid from `from_s` on; raises TraceError where
        there is none, or none yet."""
        series = self.series.get((instance_type, zone, market)) or self.series.get((instance_type, None, market))
        asked = f"{instance_type}, {market.value}" if zone is None else f"{instance_type}, {market.value} in {zone}"
        if series is None:
            zones = [zone for kind, zone, sold in self.series if (kind, sold) == (instance_type, market) and zone]
            known = (
                f"it has them in {', '.join(zones)}: say in which zone instances are"
                if zones
                else f"its types are {', '.join(self.types)}"
            )
            raise TraceError(f"{self.source} has no price of {asked}; {known}")
        if series.times_s[0] > from_s:
            raise TraceError(
                f"{self.source} has no price of {asked} before {series.times_s[0]:g} s, and an instance is paid from "
                f"{from_s:g} s; add a row for that time"
            )
        return series


def read_prices(path: Path) -> PriceList:
    """Read `time_s,instance_type,zone,market,price_per_h`, with a header; the zone may be empty, or its column absent. Raises
    TraceError if the file cannot be read, is empty, or a line is wrong."""
    times_s: dict[tuple[str, str | None, Market], list[float]] = {}
    per_h: dict[tuple[str, str | None, Market], list[float]] = {}
    for line, (time, instance_type, market, price, zone) in csv_rows(path, COLUMNS, "a file of prices", (_ZONE,)):
        if not instance_type:
            raise TraceError(f"{path}, line {line}: instance_type is empty; write the machine's name")
        try:
            sold = parse_market(market)
        except ValueError:
            raise TraceError(f"{path}, line {line}: market is {market!r}; write spot or on_demand") from None
        key = (instance_type, zone or None, sold)
        at_s = _number(path, line, "time_s", time, "seconds from the trace's start")
        own_s = times_s.setdefault(key, [])
        if own_s and at_s <= own_s[-1]:
            raise TraceError(
                f"{path}, line {line}: {at_s:g} s is not later than {own_s[-1]:g} s, the time of the price before of "
                f"{instance_type}, {sold.value}{f' in {zone}' if zone else ''}; order its prices by time"
            )
        own_s.append(at_s)
        per_h.setdefault(key, []).append(_number(path, line, "price_per_h", price, "dollars an hour"))
    if not times_s:
        raise TraceError(f"{path} has no prices")
    return PriceList(str(path), {key: PriceSeries(tuple(own_s), tuple(per_h[key])) for key, own_s in times_s.items()})


def _number(path: Path, line: int, column: str, text: str, meaning: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise TraceError(f"{path}, line {line}: {column} is {text!r}; write {meaning}, at least 0")
    return number
