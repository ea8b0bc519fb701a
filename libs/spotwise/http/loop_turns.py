"""Turns on the event loop: of a crowd that comes at once, a few have theirs in each of its iterations.

What takes a millisecond takes seconds for thousands, in which neither a token nor a heartbeat passes: a gateway that is silent
for so long counts as lost.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: Turns in one iteration of the loop.
AT_ONCE = 8


class LoopTurns:
    """Gives turns, first come, first served; of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._given = 0  # in this iteration

    async def turn(self) -> None:
        """Return once it is the caller's turn: at once where this iteration has some left."""
        loop = asyncio.get_running_loop()
        if not self._given:
            loop.call_soon(self._next_iteration, loop)
        if self._given < AT_ONCE:
            self._given += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._given = 0
        while self._waiting and self._given < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # else its client has left
                turn.set_result(None)
                self._given += 1
        if self._given:
            loop.call_soon(self._next_iteration, loop)
