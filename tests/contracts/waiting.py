"""Waits for what has no event of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: More than a loaded machine takes to start a process that imports much; only a test that fails takes as long.
PATIENCE_S = 60.0


async def until(true: Callable[[], object]) -> None:
    """Wait until `true()` is true; what never becomes so is an error, not a hang."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def until_none(ask: Callable[[], Awaitable[object]]) -> None:
    """Wait until `ask()` returns `None`."""
    async with asyncio.timeout(PATIENCE_S):
        while await ask() is not None:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
