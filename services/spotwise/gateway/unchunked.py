"""Answers to HTTP/1.0, which knows no chunks: the end of the connection is the end of the body."""

from __future__ import annotations

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unchunked:
    """Wraps the application for one request: uvicorn's cycle frames nothing, and takes every part as all that it expects.

    Args:
        app: the application.
        cycle: of the request.
    """

    def __init__(self, app: ASGI3Application, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request; see the ASGI specification."""
        cycle = self._cycle

        async def send_plain(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                cycle.chunked_encoding = False
            elif message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plain)
