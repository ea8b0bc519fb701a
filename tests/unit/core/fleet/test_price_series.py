"""Prices that change."""

from __future__ import annotations

import math

import pytest

from spotwise.core.fleet.prices import PriceSeries

PRICES = PriceSeries((100.0, 3700.0), (3.6, 7.2))


def test_a_price_holds_until_the_next_one() -> None:
    assert [PRICES.at(time_s) for time_s in (0.0, 100.0, 3699.0, 3700.0, 9000.0)] == [3.6, 3.6, 3.6, 7.2, 7.2]


def test_an_instance_costs_each_price_for_its_time() -> None:
    """A thousandth of a dollar a second, then two of them; no time costs nothing."""
    assert PRICES.cost(3600.0, 3800.0) == pytest.approx(0.1 + 0.2)
    assert PRICES.cost(3800.0, 3800.0) == 0.0
    with pytest.raises(ValueError, match="no price before 100 s"):
        PRICES.cost(99.0, 200.0)


@pytest.mark.parametrize(
    ("times_s", "per_h", "problem"),
    [
        ((), (), "has a time"),
        ((0.0, 1.0), (1.0,), "each time a price"),
        ((1.0, 1.0), (1.0, 2.0), "must ascend"),
        ((0.0,), (-1.0,), "at least 0"),
        ((0.0,), (math.inf,), "finite"),
    ],
)
def test_a_wrong_series_is_an_error(times_s: tuple[float, ...], per_h: tuple[float, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PriceSeries(times_s, per_h)
