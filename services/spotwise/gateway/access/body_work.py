"""Reads a request's body within bounds, and parses it on the event loop or off it, by its size and content.

A body that is refused has cost its reading, and perhaps a grammar's compilation: it counts as a request of its key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from spotwise.gateway.access.auth import caller_of, caller_scope
from spotwise.gateway.access.quotas import Quotas
from spotwise.http.body import BodyReader
from spotwise.http.errors import ApiError
from spotwise.http.event_loop import Effort, OffLoop, effort_of_size
from spotwise.http.sse import run_unless_left
from spotwise.mesh.process.long_work import LongWorkError

Result = TypeVar("Result")


class BodyWork:
    """Reads and understands bodies, of all endpoints within the same bounds.

    Args:
        max_body_bytes: largest body.
        max_held_bytes: most bytes of bodies at the same time.
        quotas: count what is refused.

    Attributes:
        max_body_bytes: as given.
        off_loop: does the work.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int, quotas: Quotas) -> None:
        self._bodies = BodyReader(max_body_bytes, max_held_bytes)
        self.max_body_bytes = max_body_bytes
        self._quotas = quotas
        self.off_loop = OffLoop()

    def holding(self, caller: str, size_bytes: int) -> AbstractContextManager[None]:
        """Count what a caller's body becomes as held while a block runs; raises `ApiError`, a 503, where too much is."""
        return self._bodies.holding(caller, size_bytes)

    async def of(self, request: Request, work: Callable[[bytearray], Result]) -> Result:
        """Return what `work` makes of a request's body; callers take turns.

        Raises:
            ApiError: the body is beyond the bounds.
            ClientDisconnect: the client left before.
            Exception: what `work` raised.
        """
        async with self.counting_refusals(request):
            return await self._understood(request, work)

    async def _understood(self, request: Request, work: Callable[[bytearray], Result]) -> Result:
        scope = caller_scope(request)
        async with self._bodies.body(request, scope) as body:
            effort = effort_of_size(len(body))
            if effort is Effort.ON_LOOP:
                try:
                    return await self.off_loop.begin(scope, effort, partial(work, body))
                except LongWorkError:
                    effort = Effort.GRAMMAR
            return await run_unless_left(request.receive, self.off_loop.run(scope, effort, partial(work, body)))

    async def counted(self, request: Request, work: Callable[[bytearray], Result]) -> Result:
        """Return what `work` makes of the body of a request that the mesh computes nothing for.

        Raises:
            ApiError: 429, its key has no requests left in this minute.
            Exception: as `of`.
        """
        self._quotas.require_room(caller_of(request))
        await self._quotas.count(caller_of(request))
        return await self._understood(request, work)

    @asynccontextmanager
    async def counting_refusals(self, request: Request) -> AsyncIterator[None]:
        """Count a request whose body turns out to be wrong, or whose client does not wait until it is understood."""
        try:
            yield
        except (ApiError, ClientDisconnect) as error:
            if not isinstance(error, ApiError) or error.status < 500:
                await self._quotas.count_refused(caller_of(request))
            raise
