"""Which instances are bought and which are too many."""

from __future__ import annotations

from spotwise.core.fleet.delta import (
    Urgency,
    WantedPurchase,
    ZonePurchase,
    is_shifting,
    wanted_purchases,
    within_budget,
)
from spotwise.core.fleet.state import FleetState, MarketState, ZoneRoom
from spotwise.core.fleet.targets import TypeTarget
from spotwise.core.messages.fleet import FleetInstance, InstanceState, Market

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def market(kind: Market, held: int = 0, room: int = 20, price: float = 1.0) -> MarketState:
    instances = tuple(
        FleetInstance(f"{kind}-{number}", "a", kind, InstanceState.RUNNING, 0.0, "", price_per_h=price)
        for number in range(held)
    )
    return MarketState(instances, zones=(ZoneRoom("", price, room),), prices=(price,) * (held + room))


def fleet(spot: MarketState, on_demand: MarketState) -> FleetState:
    return FleetState({("a", SPOT): spot, ("a", ON_DEMAND): on_demand}, sum(spot.prices[: spot.held]))


def of_a(serving: int, spares: int = 2, *, spot: int | None = None, floor: int = 0) -> TypeTarget:
    from_spot = serving + spares if spot is None else spot
    return TypeTarget("a", serving, spares, from_spot, serving + spares - from_spot, floor)


def wanted(target: TypeTarget, state: FleetState, *, meets_demand: bool = False) -> list[WantedPurchase]:
    return wanted_purchases(target, state, meets_demand=meets_demand, shift_gain=None)


def test_missing_instances_are_bought_in_both_markets_at_once() -> None:
    """Three lack: three as spot and three on demand; the two spares as spot only."""
    state = fleet(market(SPOT, 4), market(ON_DEMAND, 1, price=3.0))
    assert wanted(of_a(8), state) == [
        WantedPurchase("a", SPOT, 3, Urgency.SERVES),
        WantedPurchase("a", SPOT, 2, Urgency.SPARE),
        WantedPurchase("a", ON_DEMAND, 3, Urgency.HEDGE),
    ]


def test_what_serves_a_met_demand_is_bought_once() -> None:
    state = fleet(market(SPOT, 4), market(ON_DEMAND, 0))
    assert wanted(of_a(8, 0), state, meets_demand=True) == [WantedPurchase("a", SPOT, 4, Urgency.SERVES)]


def test_a_floor_is_as_urgent_as_what_serves() -> None:
    """Also where a spot instance serves already."""
    state = fleet(market(SPOT, 1), market(ON_DEMAND, 0, price=3.0))
    assert wanted(of_a(1, 1, spot=1, floor=1), state, meets_demand=True) == [
        WantedPurchase("a", ON_DEMAND, 1, Urgency.SERVES)
    ]


def test_a_sum_of_prices_that_rounds_up_to_the_budget_is_within_it() -> None:
    state = fleet(market(SPOT, 0, price=0.1), market(ON_DEMAND))
    bought, lacking_per_h = within_budget([WantedPurchase("a", SPOT, 3, Urgency.SERVES)], state, 0.3)
    assert 0.1 + 0.1 + 0.1 > 0.3
    assert ([each.count for each in bought], lacking_per_h) == ([3], 0.0)


def test_spares_alone_are_bought_as_spot_and_on_demand_where_there_is_none() -> None:
    state = fleet(market(SPOT, 7), market(ON_DEMAND))
    assert wanted(of_a(6), state) == [WantedPurchase("a", SPOT, 1, Urgency.SPARE)]
    sold_out = fleet(market(SPOT, 6, room=0), market(ON_DEMAND))
    assert wanted(of_a(6, spot=6), sold_out) == [WantedPurchase("a", ON_DEMAND, 2, Urgency.SPARE)]
    assert wanted(of_a(9, spot=6), sold_out) == [
        WantedPurchase("a", ON_DEMAND, 3, Urgency.SERVES),
        WantedPurchase("a", ON_DEMAND, 2, Urgency.SPARE),
    ]


def test_no_more_is_bought_than_there_is() -> None:
    state = fleet(market(SPOT, 5, room=1), market(ON_DEMAND, 0, room=1))
    assert sum(each.count for each in wanted(of_a(9), state)) == 2


def test_the_floor_is_bought_beside_spot_instances_that_serve() -> None:
    state = fleet(market(SPOT, 3), market(ON_DEMAND, 0))
    assert wanted(of_a(3, 0, spot=2, floor=1), state) == [WantedPurchase("a", ON_DEMAND, 1, Urgency.SERVES)]


def test_a_cheaper_market_replaces_a_dearer_one_by_buying_first() -> None:
    state = fleet(market(SPOT, 0), market(ON_DEMAND, 3, price=3.0))
    target = of_a(3, 0, spot=3)
    assert is_shifting(target, state)
    assert wanted(target, state) == []
    shift = wanted_purchases(target, state, meets_demand=True, shift_gain=0.1)
    assert within_budget(shift, state, None) == ([ZonePurchase("a", SPOT, "", 3)], 0.0)
    dear = FleetState({**state.markets, ("a", SPOT): market(SPOT, price=2.9)}, 9.0)
    assert within_budget(wanted_purchases(target, dear, meets_demand=True, shift_gain=0.1), dear, None)[0] == []


def test_the_budget_drops_the_hedge_first_and_then_spares() -> None:
    state = fleet(market(SPOT), market(ON_DEMAND, price=3.0))
    orders = wanted(of_a(3, 1), state)
    bought = [
        (purchases, lacking)
        for purchases, lacking in (within_budget(orders, state, limit) for limit in (13.0, 6.9, 3.5, 2.0))
    ]
    assert bought[0] == ([ZonePurchase("a", SPOT, "", 4), ZonePurchase("a", ON_DEMAND, "", 3)], 0.0)
    assert bought[1] == ([ZonePurchase("a", SPOT, "", 4)], 0.0)
    assert bought[2] == ([ZonePurchase("a", SPOT, "", 3)], 0.0)
    assert bought[3] == ([ZonePurchase("a", SPOT, "", 2)], 1.0)


def test_zones_are_bought_from_the_cheapest_on() -> None:
    spot = MarketState(zones=(ZoneRoom("z1", 1.0, 2), ZoneRoom("z2", 1.5, 9)), prices=(1.0, 1.0, *(1.5,) * 9))
    state = fleet(spot, MarketState())
    assert within_budget(wanted(of_a(3, 0), state), state, None)[0] == [
        ZonePurchase("a", SPOT, "z1", 2),
        ZonePurchase("a", SPOT, "z2", 1),
    ]
