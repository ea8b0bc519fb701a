"""Keys with limits, and gateways that count by a store what is used of them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotwise.core.access.keys import KeyRecord, KeyScope, KeySecret, digest_of, secret_of
from spotwise.core.access.quotas import KeyAdmission, KeyLimit, KeyLimits, KeyReport
from spotwise.gateway.access.api_access import ApiAccess
from spotwise.gateway.access.known_keys import KnownKeys
from spotwise.gateway.access.quotas import Quotas
from tests.fakes.memory import FakeClock
from tests.fakes.memory_keys import MemoryKeys

#: The beginning of a day.
BEGIN_S = 1_700_000_000.0 // 86_400 * 86_400


def secret(number: int) -> bytes:
    return secret_of(base64.urlsafe_b64encode(bytes([number]) * 32).rstrip(b"=").decode()).encode()


def bearer(number: int) -> dict[str, str]:
    """The header with the secret of that number."""
    return {"Authorization": f"Bearer {secret(number).decode()}"}


def key(name: str, number: int, *scopes: KeyScope, **more: Any) -> KeyRecord:
    """A key with one secret."""
    return KeyRecord(name, (KeySecret(digest_of(secret(number))),), scopes or (KeyScope.GENERATE,), 0.0, **more)


@dataclass
class Limited:
    """What one gateway knows and counts of `acme`, the only key of a store, which has limits."""

    access: ApiAccess
    quotas: Quotas
    store: MemoryKeys
    limits: KeyLimits

    async def used(self) -> KeyAdmission:
        """What the store has counted, without what is not reported."""
        await self.quotas.report(renew=False)
        return await self.store.use("acme", self.limits, KeyReport("reader"))


async def limited(
    store: MemoryKeys,
    clock: FakeClock,
    limits: KeyLimits,
    gateway_id: str = "g0",
    on_refusal: Callable[[KeyLimit], None] = lambda _: None,
) -> Limited:
    """Open a gateway's books; the key with the secret 1 gets these limits."""
    await store.put_key(key("acme", 1, limits=limits), (await store.keys()).keys.get("acme"))
    keys = KnownKeys((), clock, store)
    await keys.look()
    quotas = Quotas(store, clock, gateway_id, on_refusal)
    return Limited(ApiAccess(keys, quotas), quotas, store, limits)
