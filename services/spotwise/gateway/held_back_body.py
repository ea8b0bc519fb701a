"""Answers to requests with `Expect: 100-continue` whose body was not asked for.

The client may send the body all the same, or leave it out and send its next request in its place: only the connection's end is
safe (RFC 9110, section 10.1.1).
"""

from __future__ import annotations

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HeldBackBody:
    """Wraps the application for one request whose client waits for `100 Continue`.

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

        async def send_and_close(message: ASGISendEvent) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await self._app(scope, receive, send_and_close)
