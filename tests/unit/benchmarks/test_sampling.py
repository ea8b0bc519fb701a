"""Samples taken while something runs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from spotwise.benchmarks.sampling import sampled


async def test_samples_are_taken_as_long_as_the_block_lasts() -> None:
    taken = 0
    thrice = asyncio.Event()

    async def look() -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            thrice.set()

    async with sampled(look, 0.0):
        await thrice.wait()
    at_end = taken
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == at_end >= 3


async def test_a_sampler_that_fails_is_a_failure_of_the_measurement() -> None:
    """The sampler's error is raised at the block's end, which it does not cut short."""
    ran_on = False

    async def look() -> None:
        raise RuntimeError("no member there")

    with pytest.raises(RuntimeError, match="no member there"):
        async with sampled(look, 0.0):
            await asyncio.sleep(0.01)
            ran_on = True
    assert ran_on


async def test_a_cancellation_that_a_look_would_lose_is_not_relied_on() -> None:
    """A client that closes its channel may lose one on its way: the block would wait for ever."""
    under_way, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            with contextlib.suppress(asyncio.CancelledError):
                under_way.set()
                await asyncio.sleep(0.01)

    async with asyncio.timeout(2):
        async with sampled(look, 0.0):
            await under_way.wait()
    assert looks == 1
