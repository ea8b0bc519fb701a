"""Frames answers beyond uvicorn's cycle: HTTP/1.0, and an abort of connections whose clients stop reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class WriteDeadline:
    """Cuts a connection off whose client takes next to nothing; one that takes something gets as much time again.

    Args:
        loop: keeps the time.
        seconds: after which there is a look.
        min_taken_bytes: what must be gone by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, min_taken_bytes: int) -> None:
        self._loop = loop
        self._seconds = seconds
        self._min_taken_bytes = min_taken_bytes
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Begin, unless it has begun."""
        if self._timer is None:
            unwritten_bytes = transport.get_write_buffer_size()
            self._timer = self._loop.call_later(self._seconds, self._look, transport, unwritten_bytes)

    def stop(self) -> None:
        """The client has taken enough, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, transport: asyncio.Transport, unwritten_bytes: int) -> None:
        self._timer = None
        if unwritten_bytes - transport.get_write_buffer_size() < self._min_taken_bytes:
            transport.abort()
        else:
            self.start(transport)


#: Changes what a cycle takes for a request's frame, before a message of its answer is sent.
ChangeCycle = Callable[[RequestResponseCycle, ASGISendEvent], None]


def unchunk(cycle: RequestResponseCycle, message: ASGISendEvent) -> None:
    """Frame nothing, and take every part as all that is expected: HTTP/1.0 knows no chunks; a body ends with the connection."""
    if message["type"] == "http.response.start":
        cycle.chunked_encoding = False
    elif message["type"] == "http.response.body":
        cycle.expected_content_length = len(message.get("body", b""))


def close_unasked(cycle: RequestResponseCycle, message: ASGISendEvent) -> None:
    """End the connection where a body was not asked for (RFC 9110, section 10.1.1): its client may send it all the same, or its
    next request in its place.
    """
    if cycle.waiting_for_100_continue and cycle.more_body:
        cycle.keep_alive = False


class CycleAnswers:
    """Wraps the application for one request.

    Args:
        app: the application.
        cycle: uvicorn's state of the request.
        change: what its answer needs.
    """

    def __init__(self, app: ASGI3Application, cycle: RequestResponseCycle, change: ChangeCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._change = change

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request; see the ASGI specification."""

        async def send_changed(message: ASGISendEvent) -> None:
            self._change(self._cycle, message)
            await send(message)

        await self._app(scope, receive, send_changed)
