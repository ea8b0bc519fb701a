"""Access to the API: authentication by key, rate limits and quotas."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.gateway.access.auth import OPEN_PATHS
from spotwise.gateway.access.known_keys import KnownKeys
from spotwise.gateway.access.quotas import Quotas


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The keys of the API and their limits.

    Attributes:
        open_paths: what needs no key.
    """

    keys: KnownKeys
    quotas: Quotas
    open_paths: frozenset[str] = OPEN_PATHS
