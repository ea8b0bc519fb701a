"""A time-out that a busy event loop does not use up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

#: Iterations of the loop that an operation has after its time: an answer is read and taken in some of them.
ITERATIONS = 20


@asynccontextmanager
async def patience(limit_s: float) -> AsyncIterator[None]:
    """End a block after `limit_s`, but not before the loop has gone round `ITERATIONS` times since; raises `TimeoutError`.

    A loop that takes a second for each iteration has the answers of a quick server lying before it when their time is over.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Handle
    async with asyncio.timeout(None) as scope:

        def go_round(left: int) -> None:
            nonlocal waiting
            if left:
                waiting = loop.call_soon(go_round, left - 1)
            else:
                scope.reschedule(loop.time())

        waiting = loop.call_later(limit_s, go_round, ITERATIONS)
        try:
            yield
        finally:
            waiting.cancel()
