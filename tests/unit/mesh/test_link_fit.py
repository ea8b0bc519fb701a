"""Tests of the link fit: the transfer cost is learned from observed transfers."""

from __future__ import annotations

import math

import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.worker.kv_transfers import LinkFit


def fit(*seen: tuple[int, float]) -> LinkCost | None:
    """The line after these transfers."""
    learned = LinkFit()
    for num_bytes, seconds in seen:
        learned.saw(num_bytes, seconds)
    return learned.cost


def test_nothing_is_known_before_the_first() -> None:
    """There is no fit before the first transfer, and empty transfers or negative durations are ignored."""
    assert fit() is None
    assert fit((0, 1.0), (100, 0.0), (100, -1.0)) is None


def test_latency_and_bandwidth_are_separated() -> None:
    """The fit finds a latency of 1 ms and a bandwidth of 1 GB/s in the transfers."""
    cost = fit(*((size, 0.001 + size / 1e9) for size in (10_000, 4_000_000, 100_000, 1_000_000)))
    assert cost is not None
    assert cost.latency_s == pytest.approx(0.001)
    assert cost.bytes_per_s == pytest.approx(1e9)


def test_of_one_size_a_rate_is_learned() -> None:
    """Sizes that hardly differ are one."""
    assert fit((1000, 0.5)) == LinkCost(0.0, 2000.0)
    cost = fit((1000, 0.5), (1010, 0.4), (1000, 0.6))
    assert cost is not None and cost.latency_s == 0.0
    assert cost.bytes_per_s == pytest.approx(2000.0, rel=0.1)


def test_where_larger_ones_take_no_longer_the_line_is_flat() -> None:
    """Where larger transfers are not slower, the cost is their mean at every size."""
    cost = fit((1000, 0.5), (5000, 0.5), (9000, 0.4))
    assert cost is not None and math.isfinite(cost.bytes_per_s)
    assert cost.transfer_s(10) == pytest.approx(0.46, abs=0.02)
    assert cost.transfer_s(10**9) == pytest.approx(cost.transfer_s(10))


def test_no_latency_is_below_zero() -> None:
    """A line that would cut the axis below it goes through the origin."""
    cost = fit((1000, 0.1), (2000, 0.4), (3000, 0.7))
    assert cost is not None and cost.latency_s == 0.0


def test_a_link_that_changes_is_followed() -> None:
    """Old transfers have little weight in the fit."""
    sizes = (10_000, 1_000_000, 300_000, 2_000_000)
    cost = fit(
        *((size, size / 1e9) for _ in range(20) for size in sizes),
        *((size, 0.002 + size / 1e8) for _ in range(20) for size in sizes),
    )
    assert cost is not None
    assert cost.latency_s == pytest.approx(0.002, rel=0.05)
    assert cost.bytes_per_s == pytest.approx(1e8, rel=0.05)
