"""How many instances of which market are wanted."""

from __future__ import annotations

from spotwise.core.fleet.policy import FleetPolicy
from spotwise.core.fleet.state import FleetState, MarketState, ZoneRoom
from spotwise.core.fleet.targets import TypeTarget, fleet_targets
from spotwise.core.messages.fleet import Market, WantedInstances
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ConfigChoice, InstanceShare
from tests.unit.core.parallel.builders import machine

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
ALONE = FleetPolicy(spare_instances=0)


def market(price: float, coming: int = 0, room: int = 9) -> MarketState:
    return MarketState(coming=coming, zones=(ZoneRoom("", price, room),), prices=(price,) * (coming + room))


def taking(**instances: int) -> ConfigChoice:
    shares = tuple(InstanceShare(machine(name), 0, 1, count, 0) for name, count in instances.items())
    return ConfigChoice(ParallelConfig(1, 1, 1), shares, 1.0, 1.0, 1.0, 1.0, meets_demand=True)


def fleet(**markets: tuple[MarketState, MarketState]) -> FleetState:
    return FleetState(
        {
            (name, kind): found
            for name, both in markets.items()
            for kind, found in zip((SPOT, ON_DEMAND), both, strict=True)
        },
        0.0,
    )


def test_the_cheaper_market_is_wanted_and_at_close_prices_what_is_held() -> None:
    for spot, on_demand, wanted in (
        (market(1.0), market(3.0, coming=2), (3, 0)),
        (market(3.0, coming=2), market(1.0), (0, 3)),
        (market(1.0), market(1.05, coming=2), (1, 2)),
        (market(1.05, coming=2), market(1.0), (2, 1)),
        (market(1.0, room=2), market(3.0), (2, 1)),
        (market(1.0), MarketState(), (3, 0)),
        (MarketState(), market(3.0), (0, 3)),
    ):
        (target,) = fleet_targets(taking(a=3), fleet(a=(spot, on_demand)), ALONE)
        assert (target.spot, target.on_demand) == wanted


def test_spares_are_of_the_largest_type_as_far_as_there_are_any() -> None:
    state = fleet(a=(market(1.0), market(3.0)), b=(market(1.0, room=4), MarketState()))
    small, large = fleet_targets(taking(a=2, b=3), state, FleetPolicy(spare_instances=2))
    assert small == TypeTarget("a", 2, 0, 2, 0)
    assert large == TypeTarget("b", 3, 1, 4, 0)
    assert large.wanted == WantedInstances("b", 3, 0, 1)


def test_the_floor_is_where_it_costs_least_and_first_where_it_is_held() -> None:
    state = fleet(a=(market(1.0), market(3.0)), b=(market(1.0), market(2.0)))
    first, second = fleet_targets(taking(a=2, b=1), state, FleetPolicy(spare_instances=0, on_demand_floor=2))
    assert (first.on_demand, second.on_demand) == (1, 1)
    held = fleet(a=(market(1.0), market(3.0, coming=1)), b=(market(1.0), market(2.0)))
    first, second = fleet_targets(taking(a=2, b=1), held, FleetPolicy(spare_instances=0, on_demand_floor=1))
    assert (first.on_demand, first.floor, second.on_demand) == (1, 1, 0)
    most = fleet_targets(taking(a=2, b=1), state, FleetPolicy(spare_instances=0, on_demand_floor=9))
    assert [(each.spot, each.on_demand) for each in most] == [(0, 2), (0, 1)]


def test_nothing_is_wanted_without_a_choice() -> None:
    assert fleet_targets(None, fleet(a=(market(1.0), market(3.0))), ALONE) == ()
