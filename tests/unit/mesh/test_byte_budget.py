"""A budget of bytes, and the tasks that wait for a share."""

from __future__ import annotations

import asyncio

import pytest

from spotwise.mesh.links.kv_exports import ByteBudget


async def settle() -> None:
    """Let ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_more_is_held_than_the_limit() -> None:
    """A task over the limit waits until another releases bytes."""
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
    """A request above the budget is granted when nothing else is held, and blocks all others."""
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
    """A waiter cancelled in the turn of its grant returns the granted bytes."""
    budget = ByteBudget(10)
    await budget.take(6)
    waiting = asyncio.create_task(budget.take(6))
    await settle()
    budget.give(6)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.held_bytes == 0
