"""Requests that are over live on nowhere: whichever message about their end was late or lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from redis import Redis

from tests.live.mesh import MODEL, LiveMesh, wait_for

#: Simulated workers take about a minute for as many tokens: far longer than a test waits for an idle mesh.
LONG = 2000
CLIENTS = 20


class SimulatedMesh(LiveMesh):
    """One prompt worker and one token worker that only take the time."""

    def up(self) -> None:
        """Start it."""
        done = self.command("up", "--detach", "--port", "0", "--engine", "simulated", *self.options)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextlib.contextmanager
    def redis(self) -> Iterator[Redis]:
        """Its store."""
        with contextlib.closing(Redis.from_url(self.state.redis_url)) as redis:
            yield redis

    def records(self) -> list[bytes]:
        """Keys of the records that are in the store."""
        with self.redis() as redis:
            return sorted(redis.scan_iter("spotwise:request:*"))

    def wait_until_closed(self) -> None:
        """Wait until no worker and no record is left of any request."""
        self.wait_until_idle()
        wait_for(lambda: not self.records(), lambda: f"no records: {self.records()}")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    """A mesh of this module's own."""
    live = SimulatedMesh(tmp_path_factory.mktemp("closed"))
    live.up()
    yield live
    live.down()


@contextlib.asynccontextmanager
async def streams(mesh: LiveMesh, count: int) -> AsyncIterator[Callable[[], int]]:
    """So many long streams at once, which are left at the end; how many have had a token."""
    begun = 0
    body = {"model": MODEL, "max_tokens": LONG, "ignore_eos": True, "stream": True}

    async def one(client: httpx.AsyncClient, number: int) -> None:
        nonlocal begun
        async with client.stream("POST", "/v1/completions", json={**body, "prompt": f"{number} Once"}) as answer:
            async for line in answer.aiter_lines():
                begun += line.startswith("data: ")
                break
            await asyncio.sleep(60.0)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0, limits=limits) as client:
        tasks = [asyncio.create_task(one(client, number)) for number in range(count)]
        try:
            yield lambda: begun
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing for the length of a block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_clients_that_leave_while_the_store_does_nothing(mesh: SimulatedMesh) -> None:
    """Their records are written when it goes on, and with that nothing begins: workers are idle, records are gone."""

    async def leave() -> None:
        async with streams(mesh, CLIENTS):
            await asyncio.sleep(1.0)

    with stopped(mesh.pid("redis-server")):
        asyncio.run(leave())
    mesh.wait_until_closed()


def test_clients_that_leave_while_there_is_no_scheduler(mesh: SimulatedMesh) -> None:
    """Nobody is there to hear that their requests are over, and its successor knows of none: workers ask the gateway."""

    async def leave() -> None:
        async with streams(mesh, CLIENTS) as begun:
            await until(lambda: begun() == CLIENTS)
            os.kill(mesh.pid("scheduler-0"), signal.SIGKILL)
            await asyncio.sleep(0.1)

    asyncio.run(leave())
    mesh.wait_until_closed()


async def until(reached: Callable[[], bool]) -> None:
    """Poll until it is."""
    async with asyncio.timeout(20.0):
        while not reached():  # noqa: ASYNC110 - other processes have no event
            await asyncio.sleep(0.02)
