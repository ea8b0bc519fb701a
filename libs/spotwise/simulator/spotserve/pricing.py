"""Terms on which instances are bought, and bills of a fleet: an instance is paid from the moment it is granted.

A trace has names of nodes only; their zones and markets are in a file beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotwise.core.fleet.keeper.events import PricedOffer
from spotwise.core.fleet.keeper.failed_starts import SHORTEST_S
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import Market
from spotwise.files.prices import PriceList, parse_market
from spotwise.files.spot_traces import SpotTrace
from spotwise.files.tables import TraceError, csv_rows
from spotwise.simulator.spotserve.fleet import PaidLife


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


NODE_COLUMNS = ("node",)
_OPTIONAL_COLUMNS = ("zone", "market")


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where and how a node of a trace was bought; `zone` is `None` where unknown."""

    zone: str | None = None
    market: Market = Market.SPOT


def read_nodes(path: Path, trace: SpotTrace) -> dict[str, NodePlace]:
    """Read `node,zone,market`, with a header; zone and market may be empty or their columns absent: unknown, and spot. Raises
    TraceError if the file cannot be read, a line is wrong, or a node is listed twice or is not in the trace."""
    known = {life.node for life in trace.lives()}
    places: dict[str, NodePlace] = {}
    for line, (node, zone, market) in csv_rows(path, NODE_COLUMNS, "a file of nodes", _OPTIONAL_COLUMNS):
        if node not in known:
            raise TraceError(f"{path}, line {line}: {node!r} is no node of the trace {trace.name}; leave the line out")
        if node in places:
            raise TraceError(f"{path}, line {line}: {node} is listed twice")
        try:
            places[node] = NodePlace(zone or None, parse_market(market) if market else Market.SPOT)
        except ValueError:
            raise TraceError(f"{path}, line {line}: market is {market!r}; write spot or on_demand") from None
    return places


@dataclass(frozen=True, slots=True)
class FleetPricing:
    """The prices of one type of instance.

    Attributes:
        zone: zone of nodes that `places` does not have, or not with a zone; `None`: unknown.
        places: zone and market of each node; one without an entry is spot.
        begins_s: beginning of the run, on the clock of the prices.
    """

    prices: PriceList
    instance_type: str
    zone: str | None = None
    places: Mapping[str, NodePlace] = field(default_factory=dict)
    begins_s: float = 0.0

    def require_prices(self, trace: SpotTrace) -> None:
        """Check that every stay of a trace has a price from its first moment; raises TraceError otherwise."""
        for life in trace.lives():
            self._cost(life.node, life.from_s, life.from_s)

    def bill(self, lives: Iterable[PaidLife]) -> float:
        """Return the dollars for all stays; raises TraceError where one has no price."""
        return math.fsum(self._cost(life.node, life.from_s, life.to_s) for life in lives)

    def _cost(self, node: str, from_s: float, to_s: float) -> float:
        place = self.places.get(node, NodePlace())
        start_s, end_s = self.begins_s + from_s, self.begins_s + to_s
        return self.prices.of(self.instance_type, place.zone or self.zone, place.market, start_s).cost(start_s, end_s)
