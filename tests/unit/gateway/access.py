"""Access to an API under test: by keys of the environment, or of a store."""

from __future__ import annotations

from collections.abc import Iterable

from spotwise.core.access.quotas import KeyLimit
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.auth import ApiKey
from spotwise.gateway.access.known_keys import KnownKeys
from spotwise.gateway.access.quotas import Quotas
from spotwise.mesh.process.clock import SystemClock


def open_to(api_keys: Iterable[ApiKey] = ()) -> ApiAccess:
    """Return the access of a gateway with these keys and without a store."""
    clock = SystemClock()
    return ApiAccess(KnownKeys(api_keys, clock), Quotas(None, clock, "gateway-0", _ignore))


def _ignore(_limit: KeyLimit) -> None:
    pass
