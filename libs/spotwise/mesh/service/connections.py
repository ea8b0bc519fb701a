"""Opens a service's connections, each for the length of a block: broker and store, and the gRPC endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc

from spotwise.core.access.store_budget import StoreBudget
from spotwise.mesh.grpc.control import ControlServer, EngineView
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MeshStore, MessageBus
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.service.settings import ServiceSettings


@contextlib.asynccontextmanager
async def bus_and_store(settings: ServiceSettings) -> AsyncIterator[tuple[MessageBus, MeshStore]]:
    """Connect to broker and store; raises `MeshError` where one of them does not answer."""
    async with contextlib.AsyncExitStack() as stack:
        bus = await NatsBus.connect(settings.nats_url, settings.service_id, tls=settings.plane_tls)
        stack.push_async_callback(bus.close)
        budget = StoreBudget(settings.store_bytes)
        store = await RedisStore.connect(settings.redis_url, settings.plane_tls, budget)
        stack.push_async_callback(store.close)
        yield bus, store


def control_access(settings: ServiceSettings) -> ControlAccess:
    """Return a process's certificates and secret for gRPC; raises `MeshError` where the secret cannot be read."""
    return ControlAccess(settings.plane_tls, settings.mesh_secret())


@contextlib.asynccontextmanager
async def control_server(
    settings: ServiceSettings, engines: EngineView | None, device: grpc.GenericRpcHandler | None = None
) -> AsyncIterator[ControlServer]:
    """Listen for health checks, and for control of engines or a device, where there are; raises `MeshError` where the port
    is taken.
    """
    control = ControlServer(settings.bind_host, settings.grpc_port, engines, device, control_access(settings))
    await control.start()
    try:
        yield control
    finally:
        await control.close()
