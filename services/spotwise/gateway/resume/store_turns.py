"""Limits the number and the duration of operations on the store that requests wait for.

An operation fails after `limit_s`, which begins with its turn: time spent waiting for a slot does not count, nor does time in
which a busy event loop has not read the answer (`event_loop.py`). Once an operation has taken too long, all that wait for a
turn fail at once, and so do new ones while another one is tried; the first that succeeds ends that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from spotwise.core.gateway import commands as g
from spotwise.http.errors import GenerationError
from spotwise.http.event_loop import patience
from spotwise.mesh.ports.ports import MeshError

Result = TypeVar("Result")

#: Operations at once; a request whose client leaves before its record's turn is never written.
MOST_AT_ONCE = 32


class StoreTurns:
    """Gives turns; of one event loop."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._under_way = 0
        self._is_silent = False

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it for the length of a block; raises `TimeoutError`."""
        self._require_answers()
        async with self._free:
            self._require_answers()
            self._under_way += 1
            try:
                async with patience(self._limit_s):
                    yield
                self._is_silent = False
            except TimeoutError:
                self._is_silent = True
                raise
            finally:
                self._under_way -= 1

    async def result(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what the store answers in its turn; raises `GenerationError`, a 503, where it does not."""
        try:
            async with self.turn():
                return await work
        except (MeshError, TimeoutError) as error:
            message = "the request store does not take the request; send it again shortly"
            raise GenerationError(503, g.FAIL_STORE, message, 1.0) from error
        finally:
            work.close()  # it may not have had its turn

    def _require_answers(self) -> None:
        if self._is_silent and self._under_way:
            raise TimeoutError
