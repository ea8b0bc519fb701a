"""CPU-bound work in bounded threads, off the event loop.

The loop feeds every stream, so no work that grows with a request's size runs on it, and of small work a few in each iteration.
Running and waiting work is bounded by number; large work never blocks small work. A thread continues when its client leaves, so
its place frees when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from spotwise.gateway.body import overloaded
from spotwise.gateway.loop_turns import LoopTurns

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: Below, work takes a millisecond or two, less trouble than a thread.
INLINE_BYTES = 4096
#: From here on work may take seconds.
LARGE_BYTES = 256 << 10


def is_small(size_bytes: int) -> bool:
    """Whether work on so much is done on the loop."""
    return size_bytes <= INLINE_BYTES


class _ThreadLane:
    def __init__(self, threads: int, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="plan")
        self._free = asyncio.Semaphore(threads)
        self._places = max_waiting

    async def run(self, work: Callable[[], Result]) -> Result:
        if self._places == 0:
            raise overloaded("The server is busy with other large requests; try again later.")
        self._places -= 1
        try:
            await self._free.acquire()
        finally:
            self._places += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        running.add_done_callback(self._ended)
        return await asyncio.shield(running)

    def _ended(self, running: asyncio.Future[Result]) -> None:
        self._free.release()
        if not running.cancelled():
            running.exception()  # a client that left takes no error


class OffLoop:
    """Runs functions by the size of what they look at: on the loop, in one of a few threads, or in that for large ones."""

    def __init__(self) -> None:
        self._turns = LoopTurns()
        self._small = _ThreadLane(threads=2, max_waiting=512)
        self._large = _ThreadLane(threads=1, max_waiting=16)

    async def run(
        self, size_bytes: int, work: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Return what `work` returns.

        Raises:
            ApiError: 503, too much waits already.
            Exception: what `work` raised.
        """
        if is_small(size_bytes):
            await self._turns.turn()
            return work(*arguments, **named)
        lane = self._small if size_bytes <= LARGE_BYTES else self._large
        return await lane.run(lambda: work(*arguments, **named))
