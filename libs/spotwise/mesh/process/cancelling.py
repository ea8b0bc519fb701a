"""Cancels tasks reliably, and ends work that no cancellation may interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

#: After this time, tasks that are not done are cancelled again.
CANCEL_AGAIN_S = 0.1


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks repeatedly until they are done; their exceptions are dropped. Once is not enough: `asyncio.wait_for` of
    Python 3.11 (redis-py uses it) loses a cancellation that comes as its work ends, and closing gRPC channels lose one, too.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await work to its end, however often the caller is cancelled meanwhile; then the cancellation takes effect."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    await task
    if cancelled is not None:
        raise cancelled
