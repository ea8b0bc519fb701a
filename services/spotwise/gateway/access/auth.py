"""Authentication by keys, and the tenant of a request.

With keys, every path but those that probes and collectors read requires one. A key may have a name, which travels with the
request; the key itself never reaches records, logs or errors. Without keys a client may be a browser that shows anyone's page:
the request's origin says whose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from spotwise.core.access.keys import KeyRecord, KeyScope, is_key_name
from spotwise.core.access.quotas import KeyLimits
from spotwise.http.errors import ApiError
from spotwise.mesh.process.addresses import is_loopback

#: What needs no key unless it is configured to.
OPEN_PATHS = frozenset({"/health", "/livez", "/metrics", "/ping", "/readyz", "/version"})
#: Methods of a path that only tells something.
READING = ("GET", "HEAD")
#: Longest name of a user that stays as it is, in utf-8 bytes.
_MAX_USER_BYTES = 64
#: Where the caller is in a request's state.
_CALLER = "caller"


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
        if named and not is_key_name(name):
            raise ValueError(f"entry {place}: a key's name, before the colon, has 1 to 64 of A-Z a-z 0-9 . _ -")
        if not key:
            raise ValueError(f"entry {place}: there is no key after the colon")
        if key in keys and keys[key].name != name:
            raise ValueError(f"entry {place}: the same key appears there under another name")
        keys[key] = ApiKey(key, name)
    return tuple(keys.values())


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key a request carried.

    Attributes:
        name: name of the key, and its tenant; empty for a key without a name, or an open API.
        record: the key, with its scopes and limits; None for one of the environment, which has all of the former and none of
            the latter.
    """

    name: str = ""
    record: KeyRecord | None = None

    @property
    def limits(self) -> KeyLimits:
        """The limits of the key."""
        return KeyLimits() if self.record is None else self.record.limits


def caller_of(request: Request) -> Caller:
    """Return whose key a request carried."""
    found = getattr(request.state, _CALLER, None)
    return found if isinstance(found, Caller) else Caller()


def key_name(request: Request) -> str:
    """Return the name of the key that a request carried; empty for a key without a name, or an open API."""
    return caller_of(request).name


def caller_scope(request: Request) -> str:
    """Return whose a request is, for what it may find again: a hash of the key's name, or of a key without one; empty where the
    API is open.
    """
    caller = getattr(request.state, _CALLER, None)
    if caller is None:
        return ""
    whose = f"name {caller.name}".encode() if caller.name else b"key " + _given_key(request.headers)
    return hashlib.sha256(whose).hexdigest()


def tenant_of(key_name: str, user: str | None) -> str:
    """Return the tenant: the key's name, else the `user` parameter, else empty.

    A `user` is kept apart from names of keys, which have no colon, and is bounded: of a long name there is
    a hash.
    """
    if key_name or not user:
        return key_name
    name = user.encode()
    return f"user:{user}" if len(name) <= _MAX_USER_BYTES else f"user#{hashlib.sha256(name).hexdigest()}"


class KeyFinder(Protocol):
    """Knows the keys."""

    @property
    def requires_key(self) -> bool | None:
        """Whether every client needs a key."""

    async def caller(self, secret: bytes) -> Caller | None:
        """Return whose secret this is, if it admits."""

    async def look_for(self, secret: bytes) -> None:
        """Take in the store's keys if this may be the secret of one that is not known yet; raises nothing."""


class BearerAuth:
    """Middleware that requires `Authorization: Bearer KEY`, or Anthropic's `X-API-Key: KEY`, where keys are required, and notes
    whose it is.

    Args:
        app: what it protects.
        keys: those that let clients in.
        open_paths: what needs no key.
        origins: whose pages need none where keys are not required; `*`: all. Those of loopback need none either.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyFinder,
        open_paths: frozenset[str] = OPEN_PATHS,
        origins: Collection[str] = (),
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; see the ASGI specification.

        Raises:
            ApiError: 401, without a valid key; 403, with one that does not admit to this, or of a page that may not use an API
                without keys.
        """
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            await self._take_caller(scope)
        await self._app(scope, receive, send)

    async def _take_caller(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        given = _given_key(headers)
        if given and not self._keys.requires_key:
            await self._keys.look_for(given)  # the first key of all may just have been made
        if self._keys.requires_key:
            found = await self._caller(given)
            needed = _scope_of(scope["method"], scope["path"])
            if found.record is not None and not found.record.allows(needed):
                message = f"This API key has no scope '{needed}'."
                raise ApiError(403, message, code="insufficient_permissions")
            scope.setdefault("state", {})[_CALLER] = found
        elif "*" not in self._origins:
            self._require_origin(headers)

    def _require_origin(self, headers: Headers) -> None:
        """Refuse what a browser sends for a page of elsewhere, also where the page's name leads to this machine."""
        origins = headers.getlist("origin")
        refused = [origin for origin in origins if origin not in self._origins and not _is_of_loopback(origin)]
        if refused or (not origins and headers.get("sec-fetch-site") == "cross-site"):
            raise ApiError(
                403,
                f"This API has no keys, and pages of the origin '{next(iter(refused), 'unknown')}' may not use it; name the "
                "origin in SPOTWISE_CORS_ORIGINS, or make keys.",
                code="origin_not_allowed",
            )

    async def _caller(self, given: bytes) -> Caller:
        if not given:
            raise _refusal(
                "You did not provide an API key. Send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
            )
        found = await self._keys.caller(given)
        if found is None:
            raise _refusal("Incorrect API key provided.")
        return found


def _given_key(headers: Headers) -> bytes:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    key = given if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    return key.strip().encode("latin-1")


def _is_of_loopback(origin: str) -> bool:
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False


def _scope_of(method: str, path: str) -> KeyScope:
    if path == "/metrics":
        return KeyScope.METRICS
    return KeyScope.READ if method in (*READING, "OPTIONS") else KeyScope.GENERATE


def _refusal(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
