"""A mesh's store, and what a request's members write of it there: each for itself, with its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from spotwise.cli.errors import CommandError
from spotwise.mesh.ports import MeshError
from spotwise.mesh.redis_store import RedisStore

_POLL_S = 0.1

#: Facts by stage.
Ledger = dict[str, dict[str, Any]]


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[RedisStore]:
    """A mesh's store, as long as the block lasts.

    Raises:
        CommandError: instead of any `MeshError`, from the store or from whatever else of the mesh the block asks.
    """
    try:
        store = await RedisStore.connect(url)
        try:
            yield store
        finally:
            await store.close()
    except MeshError as error:
        raise CommandError(str(error)) from error


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
