"""What a request's members write of it into the store: each for itself, with its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from spotwise.mesh.redis_store import RedisStore

_POLL_S = 0.1

#: Facts by stage.
Ledger = dict[str, dict[str, Any]]


async def whole_ledger(
    store: RedisStore, request_id: str, is_whole: Callable[[Ledger], bool], patience_s: float
) -> Ledger:
    """Return a request's ledger once it is whole, or what there is of it when patience ends.

    Raises:
        MeshError: the store is away.
    """
    clock = asyncio.get_running_loop().time
    ends_s = clock() + patience_s
    while True:
        ledger = {entry.stage: dict(entry.facts) for entry in await store.get_ledger(request_id)}
        if is_whole(ledger) or clock() > ends_s:
            return ledger
        await asyncio.sleep(_POLL_S)
