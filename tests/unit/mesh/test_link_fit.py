"""What transfers cost, learned from observed ones, which settings cannot work, and the bytes that may be held."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.mesh.links.kv_exports import ByteBudget
from spotwise.mesh.links.ucx_transfer import TransferSettings
from spotwise.worker.kv_transfers import LinkFit


def fit(*seen: tuple[int, float]) -> LinkCost | None:
    learned = LinkFit()
    for num_bytes, seconds in seen:
        learned.saw(num_bytes, seconds)
    return learned.cost


def test_nothing_is_known_before_the_first() -> None:
    assert fit() is None
    assert fit((0, 1.0), (100, 0.0), (100, -1.0)) is None


def test_latency_and_bandwidth_are_separated() -> None:
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
    cost = fit((1000, 0.5), (5000, 0.5), (9000, 0.4))
    assert cost is not None and math.isfinite(cost.bytes_per_s)
    assert cost.transfer_s(10) == pytest.approx(0.46, abs=0.02)
    assert cost.transfer_s(10**9) == pytest.approx(cost.transfer_s(10))


def test_no_latency_is_below_zero() -> None:
    """A line that would cut the axis below it goes through the origin."""
    cost = fit((1000, 0.1), (2000, 0.4), (3000, 0.7))
    assert cost is not None and cost.latency_s == 0.0


def test_a_link_that_changes_is_followed() -> None:
    sizes = (10_000, 1_000_000, 300_000, 2_000_000)
    cost = fit(
        *((size, size / 1e9) for _ in range(20) for size in sizes),
        *((size, 0.002 + size / 1e8) for _ in range(20) for size in sizes),
    )
    assert cost is not None
    assert cost.latency_s == pytest.approx(0.002, rel=0.05)
    assert cost.bytes_per_s == pytest.approx(1e8, rel=0.05)


@pytest.mark.parametrize(
    "wrong",
    [{"chunk_bytes": 0}, {"in_flight": 0}, {"exported_bytes": 0}, {"stream_bytes": -1}, {"push_timeout_s": 0.0}],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        TransferSettings(**wrong)
    assert TransferSettings(stream_bytes=0).stream_bytes == 0


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_is_held_than_the_limit() -> None:
    budget = ByteBudget(10)
    await budget.take(6)
    second = asyncio.create_task(budget.take(6))
    await settle()
    assert (budget.held_bytes, second.done()) == (6, False)
    budget.give(6)
    await second
    assert budget.held_bytes == 6


async def test_the_first_waiter_is_served_first() -> None:
    """A small one does not pass a large one, though it would fit."""
    budget = ByteBudget(10)
    await budget.take(6)
    large, small = (asyncio.create_task(budget.take(size)) for size in (8, 2))
    await settle()
    assert not large.done() and not small.done()
    budget.give(6)
    await settle()
    assert large.done() and small.done()
    assert budget.held_bytes == 10


async def test_what_is_larger_than_the_budget_goes_alone() -> None:
    budget = ByteBudget(10)
    await budget.take(25)
    after = asyncio.create_task(budget.take(1))
    await settle()
    assert not after.done()
    budget.give(25)
    await after


@pytest.mark.parametrize("first", [True, False])
async def test_a_cancelled_waiter_is_passed_over(first: bool) -> None:
    budget = ByteBudget(10)
    await budget.take(6)
    waiting = [asyncio.create_task(budget.take(size)) for size in ((8, 4) if first else (8, 9))]
    await settle()
    gone, left = waiting if first else reversed(waiting)
    gone.cancel()
    await settle()
    assert left.done() is first
    budget.give(6)
    await left
    assert budget.held_bytes == (4 if first else 8)


async def test_a_waiter_served_and_cancelled_in_the_same_turn_holds_nothing() -> None:
    budget = ByteBudget(10)
    await budget.take(6)
    waiting = asyncio.create_task(budget.take(6))
    await settle()
    budget.give(6)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.held_bytes == 0
