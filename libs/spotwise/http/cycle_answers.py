"""Answers whose frame uvicorn's cycle does not know: those to HTTP/1.0, and those given in place of `100 Continue`."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

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
        cycle: of the request.
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
