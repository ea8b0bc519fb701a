"""Bounds the bytes that are held at once. Requests are granted in order of arrival, so that small ones do not starve a large
one; a request larger than the whole budget is granted when nothing else is held.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Bounds the bytes held at once, on one event loop, to `limit_bytes`, unless a single holder has more."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        #: Bytes held now.
        self.held_bytes = 0

    async def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` fit; `give` them back afterwards."""
        if not self._waiting and self._fits(num_bytes):
            self.held_bytes += num_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, num_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._serve()  # the cancelled request may have been first
            else:
                self.give(num_bytes)  # granted in the same turn of the loop
            raise

    def give(self, num_bytes: int) -> None:
        """Give bytes back."""
        self.held_bytes -= num_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            turn, num_bytes = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(num_bytes):
                    return
                self.held_bytes += num_bytes
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, num_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + num_bytes <= self._limit_bytes
