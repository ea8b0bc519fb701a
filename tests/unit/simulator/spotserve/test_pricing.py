"""Bills of fleets in several zones and markets."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import Market
from spotwise.files.prices import PriceList
from spotwise.files.tables import TraceError
from spotwise.simulator.spotserve.pricing import FleetPricing, NodePlace, read_nodes
from spotwise.simulator.spotserve.run import SpotOutcome
from spotwise.simulator.spotserve.serving import serve
from tests.unit.simulator.spotserve import spot_worlds as tiny

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
TRACE = tiny.trace((0.0, "add", "a b c"), (30.0, "remove", "b"), (60.0, "add", "b"), end_s=100.0)
PRICES = PriceList(
    "prices.csv",
    {
        ("x", "east", SPOT): PriceSeries((0.0, 10.0), (36.0, 72.0)),
        ("x", None, SPOT): PriceSeries((0.0, 80.0), (360.0, 0.0)),
        ("x", None, ON_DEMAND): PriceSeries((0.0,), (3600.0,)),
    },
)


def outcome() -> SpotOutcome:
    return serve(tiny.run(TRACE, (1.0, 40.0)))


def test_each_stay_is_paid_at_the_prices_of_its_zone_and_market() -> None:
    """a stays in the east; b has two stays, elsewhere; c is on demand."""
    pricing = FleetPricing(PRICES, "x", "west", {"a": NodePlace("east"), "c": NodePlace(market=ON_DEMAND)})
    pricing.require_prices(TRACE)
    a, b, c = 10 * 0.01 + 90 * 0.02, 30 * 0.1 + 20 * 0.1, 100 * 1.0
    assert outcome().ended_s == 100.0
    assert pricing.bill(outcome().lives) == pytest.approx(a + b + c)


def test_a_run_may_begin_later_than_the_prices() -> None:
    pricing = FleetPricing(PRICES, "x", "west", begins_s=70.0)
    assert pricing.bill(outcome().lives) == pytest.approx(3 * 10 * 0.1)


def test_with_constant_prices_the_bill_is_the_cost_of_the_instance_hours() -> None:
    pricing = FleetPricing(PriceList.flat(7.0), "")
    assert pricing.bill(outcome().lives) == pytest.approx(outcome().cost(7.0, 7.0))


def test_a_missing_price_is_noticed_before_the_run() -> None:
    late = PriceList("late.csv", {("x", None, SPOT): PriceSeries((20.0,), (1.0,))})
    with pytest.raises(TraceError, match=r"late\.csv has no price of x, spot before 20 s"):
        FleetPricing(late, "x").require_prices(TRACE)


def test_a_file_of_nodes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("node,zone,market\na,east,on-demand\nb,,\n")
    assert read_nodes(path, TRACE) == {"a": NodePlace("east", ON_DEMAND), "b": NodePlace()}
    path.write_text("node\nc\n")
    assert read_nodes(path, TRACE) == {"c": NodePlace()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zone\neast\n", "line 1: no column node; a file of nodes begins with node"),
        ("node\nd\n", "line 2: 'd' is no node of the trace tiny"),
        ("node\na\na\n", "line 3: a is listed twice"),
        ("node,market\na,mine\n", "line 2: market is 'mine'; write spot or on_demand"),
    ],
)
def test_a_malformed_file_of_nodes_is_an_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"nodes\.csv, {said}"):
        read_nodes(path, TRACE)
