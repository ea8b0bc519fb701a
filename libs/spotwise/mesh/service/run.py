"""Runs a service: settings, logs, event loop, connections, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import grpc
import structlog
import uvloop
from pydantic import ValidationError

from spotwise.core.access.store_budget import StoreBudget
from spotwise.mesh.grpc.control import ControlServer, EngineView
from spotwise.mesh.grpc.control_access import ControlAccess
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import MeshError, MeshStore, MessageBus
from spotwise.mesh.process.garbage import collect_rarely, leave_to_the_system
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.mesh.service.telemetry import configure_logging


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


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def run_service(settings_type: type[SettingsT], serve: Callable[[SettingsT], Awaitable[None]]) -> int:
    """Read the settings from the environment, serve until a stop signal, and return the exit code: 0: stopped in order; 1: the
    mesh could not be joined; 2: a setting is wrong or missing.
    """
    try:
        settings = settings_type()
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            named = f"SPOTWISE_{name}: " if name else ""  # what is wrong with several names them itself
            sys.stderr.write(f"{named}{problem['msg'].removeprefix('Value error, ')}\n")
        return 2
    configure_logging(settings)
    _allow_files()
    collect_rarely()

    async def main() -> None:
        await serve(settings)

    try:
        uvloop.run(main())
    except MeshError as error:
        structlog.get_logger(__name__).error("cannot_serve", error=str(error))
        return 1
    finally:
        leave_to_the_system()
    return 0


def _allow_files() -> None:
    """Raise the soft limit of open files to the hard one: every connection is one, and the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def call_on_stop_signals(leave: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call `leave` on the running loop at the first SIGTERM or SIGINT, and `stop` at each further one."""
    acts = itertools.chain([leave], itertools.repeat(stop))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: next(acts)())
