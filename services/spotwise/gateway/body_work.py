"""What is done with a request's body: read within bounds, understood on the loop or off it, as its size says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from spotwise.gateway.auth import caller_scope
from spotwise.gateway.body import BodyReader
from spotwise.gateway.off_loop import Effort, OffLoop, effort_of_size
from spotwise.gateway.sse import run_unless_left

Result = TypeVar("Result")


class BodyWork:
    """Reads and understands bodies, of all endpoints within the same bounds.

    Args:
        max_body_bytes: largest body.
        max_held_bytes: most bytes of bodies at the same time.

    Attributes:
        max_body_bytes: as given.
        off_loop: does the work.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int) -> None:
        self._bodies = BodyReader(max_body_bytes, max_held_bytes)
        self.max_body_bytes = max_body_bytes
        self.off_loop = OffLoop()

    def holding(self, size_bytes: int) -> AbstractContextManager[None]:
        """Count what a body becomes as held while a block runs; raises `ApiError`, a 503, where too much is."""
        return self._bodies.holding(size_bytes)

    async def of(
        self,
        request: Request,
        work: Callable[[bytearray], Result],
        effort_of: Callable[[bytearray], Effort] = lambda body: effort_of_size(len(body)),
    ) -> Result:
        """Return what `work` makes of a request's body, which takes the effort that `effort_of` says; callers take turns.

        Raises:
            ApiError: the body is beyond the bounds.
            ClientDisconnect: the client left before.
            Exception: what `work` raised.
        """
        async with self._bodies.body(request) as body:
            effort = effort_of(body)
            working = self.off_loop.run(caller_scope(request), effort, partial(work, body))
            return await (working if effort is Effort.ON_LOOP else run_unless_left(request.receive, working))
