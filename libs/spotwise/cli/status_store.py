"""How full the store is, for `spotwise status`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from spotwise.cli.mesh_access import open_store
from spotwise.core.access.store_budget import Kind, RoomUse


async def store_use(redis_url: str) -> Mapping[Kind, RoomUse]:
    """Return how full the room of each kind is; raises `CommandError` where the store does not answer."""
    async with open_store(redis_url) as store:
        return await store.room_use()


def use_line(uses: Mapping[Kind, RoomUse]) -> str:
    """Return a line that says how much is kept of what."""
    shown = [f"{kind} {_mib(use.used_bytes)} of {_mib(use.most_bytes)}" for kind, use in uses.items() if use.most_bytes]
    return f"kept in the store, MiB: {', '.join(shown) or 'nothing'}"


def store_problems(uses: Mapping[Kind, RoomUse], now_unix_s: float) -> list[str]:
    """Say where the store had no more memory of late."""
    full = {kind: use for kind, use in uses.items() if use.is_full(now_unix_s)}
    if not full:
        return []
    at = time.strftime("%H:%M:%S", time.localtime(max(use.full_unix_s for use in full.values())))
    return [
        f"the store had no more memory at {at}: {' and '.join(full)} make room for themselves, or are not kept; raise Redis' "
        "maxmemory, or lower SPOTWISE_STORE_BYTES"
    ]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f}"
