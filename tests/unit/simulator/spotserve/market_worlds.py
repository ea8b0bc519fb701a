"""Fleets that a simulated market sells: one device an instance, a second of a request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spotwise.core.costs.cost_profile import BUILT_IN
from spotwise.core.fleet.keeper.events import PricedOffer
from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.own_fleet import COMPARED, RequestSize, own_model
from spotwise.simulator.spotserve.pricing import PurchaseTerms
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import SpotSurroundings

SIZE = RequestSize(1140, 209)
SHAPE = ModelShape("llama2-70b", 80, 8192, 135 * 2**30 // 80, 0, 0, 4096)
KIND = FleetType("big", 1, None, 10.0, BUILT_IN)
#: Weights come within seconds.
AROUND = SpotSurroundings(grace_s=30.0, network_bytes_per_s=50e9, storage_bytes_per_s=50e9)


def terms(
    policy: FleetPolicy, *, spot: int = 4, on_demand: int = 0, limit: int | None = None, per_h: float = 36.0
) -> PurchaseTerms:
    """Offers of so many spot instances at `per_h`, and of on-demand ones at twice as much."""
    sold = ((Market.SPOT, spot, per_h), (Market.ON_DEMAND, on_demand, 2 * per_h))
    offers = tuple(
        PricedOffer(KIND.name, market, most, PriceSeries((0.0,), (price,))) for market, most, price in sold if most
    )
    return PurchaseTerms(KIND, offers, policy, limit, refused_s=2.0)


def run(
    trace: SpotTrace, times_s: Sequence[float], market: PurchaseTerms, system: str = "spotwise", drain_s: float = 600.0
) -> SpotRun:
    """A run of requests of one size."""
    arrivals = SpotArrivals("own", tuple(times_s), SIZE.input_tokens, SIZE.output_tokens)
    model = own_model(BUILT_IN, SHAPE, SIZE, AROUND)
    return SpotRun(trace, arrivals, model, replace(COMPARED[system]), AROUND, drain_s=drain_s, market=market)
