"""Prices over time, and bills that follow them to the moment of a change."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.fleet.prices import PriceSeries
from spotwise.core.messages.fleet import Market
from spotwise.files.prices import PriceList, read_prices
from spotwise.files.tables import TraceError

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def written(folder: Path, text: str) -> Path:
    path = folder / "prices.csv"
    path.write_text(text, encoding="utf-8")
    return path


@st.composite
def all_series(draw: st.DrawFn) -> PriceSeries:
    later = draw(st.lists(st.integers(1, 5000), max_size=8, unique=True).map(sorted))
    times_s = (0.0, *map(float, later))
    prices = st.integers(0, 1000).map(lambda cents: cents / 4)
    return PriceSeries(times_s, tuple(draw(st.lists(prices, min_size=len(times_s), max_size=len(times_s)))))


@given(all_series(), st.lists(st.integers(0, 6000), min_size=2, max_size=2).map(sorted))
def test_a_bill_is_the_sum_over_all_seconds(series: PriceSeries, span: list[int]) -> None:
    from_s, to_s = span
    changes = dict(zip(series.times_s, series.per_h, strict=True))
    price, total = 0.0, Fraction(0)
    for second in range(to_s):
        price = changes.get(second, price)
        total += Fraction(price) if second >= from_s else 0
    assert series.cost(from_s, to_s) == pytest.approx(float(total / 3600), rel=1e-12, abs=1e-12)
    assert series.cost(to_s, from_s) == 0.0


@given(all_series(), st.lists(st.floats(0, 6000), min_size=3, max_size=3).map(sorted))
def test_a_stay_costs_what_its_parts_cost(series: PriceSeries, times_s: list[float]) -> None:
    start_s, middle_s, end_s = times_s
    parts = series.cost(start_s, middle_s) + series.cost(middle_s, end_s)
    assert series.cost(start_s, end_s) == pytest.approx(parts, rel=1e-9, abs=1e-9)
    assert series.cost(start_s, middle_s) <= series.cost(start_s, end_s) + 1e-9


def test_before_the_first_price_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"no price before 10 s.*paid from 9 s"):
        PriceSeries((10.0,), (1.0,)).cost(9.0, 20.0)
    for times_s, per_h in (((), ()), ((0.0, 0.0), (1.0, 1.0)), ((0.0,), (-1.0,)), ((0.0,), (float("inf"),))):
        with pytest.raises(ValueError, match=r"has a time|must ascend|at least 0"):
            PriceSeries(times_s, per_h)


def test_a_zone_has_its_own_prices_or_those_of_all(tmp_path: Path) -> None:
    """Columns in any order, markets in either spelling, rows of several types between one another."""
    text = "zone,price_per_h,market,instance_type,time_s\n,2.0,spot,small,0\neast,3.0,spot,small,0\n"
    text += ",9.0,on-demand,small,0\neast,4.0,SPOT,small,60\nwest,7.0,spot,large,5\n"
    prices = read_prices(written(tmp_path, text))
    assert prices.types == ("small", "large")
    assert prices.of("small", "east", SPOT, 0.0) == PriceSeries((0.0, 60.0), (3.0, 4.0))
    assert prices.of("small", "north", SPOT, 0.0) == prices.of("small", None, SPOT, 0.0) == PriceSeries((0.0,), (2.0,))
    assert prices.of("small", "east", ON_DEMAND, 0.0).per_h == (9.0,)
    with pytest.raises(TraceError, match=r"no price of large, spot; it has them in west: say in which zone"):
        prices.of("large", None, SPOT, 0.0)
    with pytest.raises(TraceError, match=r"no price of large, on_demand in west; its types are small, large"):
        prices.of("large", "west", ON_DEMAND, 0.0)
    with pytest.raises(TraceError, match=r"large, spot in west before 5 s.*paid from 0 s; add a row"):
        prices.of("large", "west", SPOT, 0.0)


def test_one_price_may_hold_for_everything() -> None:
    prices = PriceList.flat(36.0)
    assert {prices.of("", zone, market, 0.0).cost(0.0, 100.0) for zone in (None, "a") for market in Market} == {1.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no column time_s"),
        ("time_s,instance_type,market\n", "line 1: no column price_per_h; a file of prices begins with time_s,"),
        ("time_s,instance_type,market,price_per_h\n", "has no prices"),
        ("time_s,instance_type,market,price_per_h\n0,a,spot\n", "line 2: 3 fields where the header has 4"),
        ("time_s,instance_type,market,price_per_h\n0,,spot,1\n", "line 2: instance_type is empty"),
        ("time_s,instance_type,market,price_per_h\n0,a,spot,1\n1,a,sport,1\n", "line 3: market is 'sport'; write spot"),
        ("time_s,instance_type,market,price_per_h\n-1,a,spot,1\n", "line 2: time_s is '-1'; write seconds"),
        ("time_s,instance_type,market,price_per_h\n0,a,spot,1\n0,a,spot,2\n", "line 3: 0 s is not later than 0 s"),
        ("time_s,instance_type,market,price_per_h\n0,a,spot,nan\n", "line 2: price_per_h is 'nan'; write dollars"),
    ],
)
def test_a_malformed_file_is_an_error_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=rf"prices\.csv.*{said}"):
        read_prices(written(tmp_path, text))
    with pytest.raises(TraceError, match="cannot be read"):
        read_prices(tmp_path / "none.csv")
