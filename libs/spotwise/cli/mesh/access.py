"""Connects a command to a mesh: its broker, its store, and its members' gRPC."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spotwise.cli.errors import CommandError
from spotwise.mesh.grpc.control_access import OPEN_ACCESS, ControlAccess
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.security.plane_tls import PlaneTls

if TYPE_CHECKING:
    from spotwise.mesh.nats.bus import NatsBus


def operator_access() -> ControlAccess:
    """Return the certificates of this command, from SPOTWISE_TLS_DIR as a service's; raises `CommandError` if unusable."""
    folder = os.environ.get("SPOTWISE_TLS_DIR")
    if not folder:
        return OPEN_ACCESS
    tls = PlaneTls(Path(folder))
    try:
        tls.check()
    except MeshError as error:
        raise CommandError(f"SPOTWISE_TLS_DIR: {error}") from error
    return ControlAccess(tls)


async def connect_bus(url: str, name: str) -> NatsBus:
    """Connect to a mesh's broker; raises `MeshError`, and `CommandError` for unusable certificates."""
    from spotwise.mesh.nats.bus import NatsBus  # the store needs none, and is all that some commands need

    return await NatsBus.connect(url, name, tls=operator_access().tls)


async def connect_store(url: str) -> RedisStore:
    """Connect to a mesh's store; raises `MeshError`, and `CommandError` for unusable certificates."""
    return await RedisStore.connect(url, tls=operator_access().tls)


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[RedisStore]:
    """Open a mesh's store for the block; any `MeshError` in the block is raised as `CommandError`."""
    try:
        store = await connect_store(url)
        try:
            yield store
        finally:
            await store.close()
    except MeshError as error:
        raise CommandError(str(error)) from error
