"""How tasks are ended for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: Until tasks that are not done are cancelled once more.
CANCEL_AGAIN_S = 0.1


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again and again until they are done; what they fail with is not told.

    Once is not enough: `asyncio.wait_for` of Python 3.11 forgets a cancellation that comes when its work is done, and redis-py
    sends by it; gRPC's channels lose one that meets their closing. A task cancelled at that moment would go on.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
