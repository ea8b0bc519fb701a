"""Who may use the API.

Law: with keys configured, every path but the two that probes and collectors read needs one of them; the comparison's
time tells nothing about the keys.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spotwise.gateway.errors import ApiError

_OPEN_PATHS = frozenset({"/health", "/metrics"})


class BearerAuth:
    """Middleware that asks for `Authorization: Bearer KEY`.

    Args:
        app: what it protects.
        api_keys: accepted keys; empty leaves everything open.
    """

    def __init__(self, app: ASGIApp, api_keys: frozenset[str]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification.

        Raises:
            ApiError: 401, without a valid key.
        """
        if scope["type"] == "http" and self._keys and scope["path"] not in _OPEN_PATHS:
            self._check(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _check(self, authorization: str) -> None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise _refusal("You did not provide an API key. Send it as 'Authorization: Bearer KEY'.")
        presented = given.strip().encode("latin-1")
        # Every key is compared, so that the time does not tell which one came near.
        if not sum(hmac.compare_digest(presented, key) for key in self._keys):
            raise _refusal("Incorrect API key provided.")


def _refusal(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
