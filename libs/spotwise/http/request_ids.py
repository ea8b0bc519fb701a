"""Every answer's `X-Request-Id`: the client's, or the gateway's where it sent none.

Every answer, errors included, has exactly one, without characters that could break a header or a log line.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spotwise.http.message_errors import is_messages_path

HEADER = "x-request-id"
#: Under which Anthropic's clients look for it.
ANTHROPICS_HEADER = "request-id"
_SANE = re.compile(r"[A-Za-z0-9._:/=+@-]{1,128}")
#: Where they are in a request's state.
_CLIENTS, _OWN = "client_request_id", "own_request_id"


def new_request_id() -> str:
    """Return an id for a request that has none yet."""
    return f"req-{secrets.token_hex(16)}"


def client_request_id(request: Request) -> str:
    """Return the id that the client gave its request; empty without one, or where it is too long or has odd characters."""
    return str(getattr(request.state, _CLIENTS, ""))


def request_id(scope: Scope) -> str:
    """Return the id under which the answer to a request goes out; empty outside of `RequestIds`."""
    state = scope.get("state", {})
    return str(state.get(_CLIENTS) or state.get(_OWN, ""))


def name_request(request: Request, answer_id: str) -> None:
    """Let the request's errors carry the id of its answer, under which its ledger is kept."""
    setattr(request.state, _OWN, answer_id)


class RequestIds:
    """Middleware that gives every response its `X-Request-Id`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        given = Headers(scope=scope).get(HEADER, "")
        state[_CLIENTS] = given if _SANE.fullmatch(given) else ""
        state[_OWN] = new_request_id()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id(scope)
                if is_messages_path(scope["path"]):
                    headers[ANTHROPICS_HEADER] = request_id(scope)
            await send(message)

        await self._app(scope, receive, send_named)


class TrailingSlashes:
    """Middleware for which a path and the same path with slashes behind it are one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification."""
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


def item_id(prefix: str, *parts: object) -> str:
    """Return the id of an item, the same wherever it is made."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
    return f"{prefix}_{digest[:48]}"
