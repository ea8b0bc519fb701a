"""What is looked at again and again while a load runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def sampled(look: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Look at once and at intervals as long as the block lasts; what looking fails with is raised at its end.

    A look that is under way at the end is waited for: clients of servers may lose a cancellation on its way, and would then be
    looked through for ever.
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
