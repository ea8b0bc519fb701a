"""Machines, their prices and how many can be had."""

from __future__ import annotations

import numpy as np
import pytest

from spotwise.core.parallel.instances import Supply
from tests.unit.core.parallel.builders import machine


def test_the_cheaper_ones_come_first() -> None:
    """Spot as a rule; on demand where that is no dearer."""
    assert Supply(machine(), 3, 5).split(4) == (3, 1)
    assert Supply(machine(spot=4.0), 3, 5).split(6) == (1, 5)
    assert Supply(machine(spot=3.0), 3, 5).split(5) == (0, 5)


@pytest.mark.parametrize("spot", [1.0, 4.0])
def test_the_price_is_that_of_the_split(spot: float) -> None:
    """For every number of instances the price is the sum over the spot and on-demand instances of the split."""
    supply = Supply(machine(spot=spot, on_demand=3.0), 3, 5)
    splits = [supply.split(instances) for instances in range(9)]
    expected = [spots * spot + on_demands * 3.0 for spots, on_demands in splits]
    assert supply.price_per_h(np.arange(9)).tolist() == expected


def test_more_than_can_be_had_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="not available"):
        Supply(machine(), 3, 5).split(9)


def test_instances_of_several_prices_are_paid_in_their_order() -> None:
    """Held ones first, whatever they cost."""
    supply = Supply(machine(spot=1.0, on_demand=3.0), 3, 1, spot_prices=(0.5, 2.0, 1.0), on_demand_prices=(4.0,))
    assert supply.price_per_h(np.arange(5)).tolist() == [0.0, 0.5, 2.5, 3.5, 7.5]
    with pytest.raises(ValueError, match="3 instances of a are available, and 1 have a price"):
        Supply(machine(), 3, spot_prices=(1.0,))


def test_one_way_of_selling_is_enough() -> None:
    assert Supply(machine(spot=None), 0, 5).split(2) == (0, 2)
    assert Supply(machine(on_demand=None), 5).split(2) == (2, 0)
    with pytest.raises(ValueError, match="not sold as spot"):
        Supply(machine(spot=None), 1, 5)
    with pytest.raises(ValueError, match="not sold on demand"):
        Supply(machine(on_demand=None), 1, 5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="held instances"):
        Supply(machine(), 1, held_spot=2)
    with pytest.raises(ValueError, match="at least 1 device"):
        machine(devices=0)
    with pytest.raises(ValueError, match="below 0"):
        machine(spot=-1.0)
