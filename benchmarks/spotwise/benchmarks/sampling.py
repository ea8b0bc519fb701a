"""Periodic sampling during a load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def sampled(look: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Call `look` at once and at intervals during the block; its error is raised at the end of the block.

    A running look is awaited at the end: clients of servers may lose a cancellation, and the loop would never end.
    """
    ended = asyncio.Event()

    async def look_again_and_again() -> None:
        while not ended.is_set():
            await look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await ended.wait()

    sampling = asyncio.create_task(look_again_and_again())
    try:
        yield
    finally:
        ended.set()
        await sampling
