"""Authentication by bearer keys, and the tenant of a request.

With keys configured, every path but the two that probes and collectors read requires one. Keys are compared in constant time.
A key may have a name, which travels with the request; the key itself never reaches records, logs or errors.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from spotwise.gateway.errors import ApiError

_OPEN_PATHS = frozenset({"/health", "/metrics"})
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: Longest name of a user that stays as it is, in utf-8 bytes.
_MAX_USER_BYTES = 64
#: Where the name is in a request's state.
_KEY_NAME = "api_key_name"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A bearer key that lets a client in; not to be seen where it is shown.

    Attributes:
        key: what the client sends.
        name: whose it is; empty where it has none.
    """

    key: str = field(repr=False)
    name: str = ""


def parse_api_keys(listed: str) -> tuple[ApiKey, ...]:
    """Return the keys of a list, separated by commas, each as `KEY` or `NAME:KEY`.

    A colon is not among the characters of bearer keys (RFC 6750, section 2.1), so no key can be taken for a name and a key.

    Raises:
        ValueError: a name that is none, an empty key, or one key with two names. The message names the entry's place, not its
        content.
    """
    keys: dict[str, ApiKey] = {}
    for place, entry in enumerate(listed.split(","), start=1):
        name, named, key = (part.strip() for part in entry.rpartition(":"))
        if not named and not key:
            continue  # a comma too many
        if named and not _NAME.fullmatch(name):
            raise ValueError(f"entry {place}: a key's name, before the colon, has 1 to 64 of A-Z a-z 0-9 . _ -")
        if not key:
            raise ValueError(f"entry {place}: there is no key after the colon")
        if key in keys and keys[key].name != name:
            raise ValueError(f"entry {place}: the same key appears there under another name")
        keys[key] = ApiKey(key, name)
    return tuple(keys.values())


def key_name(request: Request) -> str:
    """Return the name of the key that a request carried; empty for a key without a name, or an open API."""
    return str(getattr(request.state, _KEY_NAME, ""))


def caller_scope(request: Request) -> str:
    """Return whose a request is, for what it may find again: a hash of the key's name, or of a key without one; empty where the
    API is open.
    """
    name = getattr(request.state, _KEY_NAME, None)
    if name is None:
        return ""
    whose = f"name {name}" if name else f"key {request.headers.get('authorization', '')}"
    return hashlib.sha256(whose.encode()).hexdigest()


def tenant_of(key_name: str, user: str | None) -> str:
    """Return the tenant: the key's name, else the `user` parameter, else empty.

    A `user` is kept apart from names of keys, which have no colon, and is bounded: of a long name there is
    a hash.
    """
    if key_name or not user:
        return key_name
    name = user.encode()
    return f"user:{user}" if len(name) <= _MAX_USER_BYTES else f"user#{hashlib.sha256(name).hexdigest()}"


class BearerAuth:
    """Middleware that requires `Authorization: Bearer KEY` and notes the key's name.

    Args:
        app: what it protects.
        api_keys: accepted keys; empty leaves everything open.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[ApiKey]) -> None:
        self._app = app
        self._keys = tuple((api_key.key.encode(), api_key.name) for api_key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification.

        Raises:
            ApiError: 401, without a valid key.
        """
        if scope["type"] == "http" and self._keys and scope["path"] not in _OPEN_PATHS:
            name = self._name_of(Headers(scope=scope).get("authorization", ""))
            scope.setdefault("state", {})[_KEY_NAME] = name
        await self._app(scope, receive, send)

    def _name_of(self, authorization: str) -> str:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise _refusal("You did not provide an API key. Send it as 'Authorization: Bearer KEY'.")
        presented = given.strip().encode("latin-1")
        # Every key is compared, so that the time reveals nothing.
        names = [name for key, name in self._keys if hmac.compare_digest(presented, key)]
        if not names:
            raise _refusal("Incorrect API key provided.")
        return names[0]


def _refusal(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
