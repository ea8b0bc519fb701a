"""Services at work: in this process, and in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer, EngineView
from spotwise.mesh.service.host import ServiceHost
from tests.contracts.waiting import PATIENCE_S


def wait_for(condition: Callable[[], object], what: str = "", seconds: float = 30.0) -> None:
    """Wait until it holds, outside of any loop."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.01)


@asynccontextmanager
async def serving(host: ServiceHost) -> AsyncIterator[None]:
    """Run a host for the length of a block; it stops when the block ends."""
    running = asyncio.create_task(host.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    finally:
        host.stop()
        await running


@asynccontextmanager
async def control_server(engines: EngineView | None = None, **options: Any) -> AsyncIterator[tuple[ControlServer, str]]:
    """A control server on a free port, and its address; it does not report that it serves."""
    server = ControlServer(LOOPBACK, 0, engines, **options)
    await server.start()
    try:
        yield server, f"{LOOPBACK}:{server.port}"
    finally:
        await server.close()


async def start_service(
    module: str, stderr: int = asyncio.subprocess.DEVNULL, /, **variables: str
) -> asyncio.subprocess.Process:
    """Start a service with these SPOTWISE_ variables, and no others."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SPOTWISE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"spotwise.{module}",
        env=env | {f"SPOTWISE_{name}": value for name, value in variables.items()},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=stderr,
    )
