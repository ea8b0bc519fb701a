"""Waits for a request's ledger, which its members write into the store with their heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from spotwise.mesh.redis.store import RedisStore

_POLL_S = 0.1

#: Facts by stage.
Ledger = dict[str, dict[str, Any]]


async def whole_ledger(
    store: RedisStore, request_id: str, is_whole: Callable[[Ledger], bool], patience_s: float
) -> Ledger:
    """Return a request's ledger once it is whole, or its part after `patience_s`; raises `MeshError` without the store."""
    clock = asyncio.get_running_loop().time
    ends_s = clock() + patience_s
    while True:
        ledger = {entry.stage: dict(entry.facts) for entry in await store.get_ledger(request_id)}
        if is_whole(ledger) or clock() > ends_s:
            return ledger
        await asyncio.sleep(_POLL_S)
