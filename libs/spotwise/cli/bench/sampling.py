"""What is looked at again and again while a load runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def sampled(look: Callable[[], Awaitable[None]], every_s: float) -> AsyncIterator[None]:
    """Look at once and at intervals as long as the block lasts; what looking fails with is raised at its end."""

    async def look_again_and_again() -> None:
        while True:
            await look()
            await asyncio.sleep(every_s)

    sampling = asyncio.create_task(look_again_and_again())
    try:
        yield
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling
