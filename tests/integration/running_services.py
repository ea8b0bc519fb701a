"""Services at work: in this process, and in processes of their own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spotwise.mesh.service.host import ServiceHost
from tests.contracts.waiting import PATIENCE_S


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


async def start_service(
    module: str, stderr: int = asyncio.subprocess.DEVNULL, **variables: str
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
