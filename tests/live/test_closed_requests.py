"""Requests that are over live on nowhere: whichever message about their end was late or lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import psutil
import pytest
from redis import Redis

from spotwise.cli.client.gateway_client import decode_event
from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.simulated_mesh import SimulatedMesh

pytestmark = pytest.mark.paired

#: These workers take about a minute for as many tokens: far longer than a test waits for an idle mesh.
LONG = 7000
SPEED = "4"
CLIENTS = 20
STORM = 1000
#: Of the storm's clients, how many are there at once.
STORM_WIDTH = 100
#: What each process, and the store without its ledgers, may have more after a second storm than after the first.
SLACK_BYTES = 32 << 20


class ClosingMesh(SimulatedMesh):
    """One prompt worker and one token worker, whose closed requests are to leave nothing behind."""

    @contextlib.contextmanager
    def redis(self) -> Iterator[Redis]:
        """The store of the mesh."""
        with contextlib.closing(Redis.from_url(self.admin_redis_url)) as redis:
            yield redis

    def records(self) -> list[bytes]:
        """Keys of the records that are in the store."""
        with self.redis() as redis:
            return sorted(redis.scan_iter("spotwise:request:*"))

    def open_requests(self) -> dict[str, int]:
        """Requests that gateway and scheduler have open, by member; a heartbeat or so old."""
        members = [status.member for status in self.members()]
        return {member.id: member.open_requests for member in members if member.open_requests is not None}

    def wait_until_closed(self) -> None:
        """Wait until nothing is left of any request: no sequence, no record, no entry."""
        self.wait_until_idle()
        wait_for(lambda: not self.records(), lambda: f"no records: {self.records()}")
        nothing = {"gateway-0": 0, "scheduler-0": 0}
        wait_for(lambda: self.open_requests() == nothing, lambda: f"no open requests: {self.open_requests()}")

    def decoding(self) -> int:
        """Sequences that workers have in their token phase."""
        loads = (status.member_now.load for status in self.members())
        return sum(load.decoding for load in loads if load is not None)

    def resident_bytes(self) -> dict[str, int]:
        """Resident memory of every process."""
        return {name: psutil.Process(self.pid(name)).memory_info().rss for name in self.state.services}

    def delete_ledgers(self) -> int:
        """Delete the ledgers, which would stay for an hour; how many there were."""
        with self.redis() as redis:
            ledgers = list(redis.scan_iter("spotwise:ledger:*"))
            assert all(0 < redis.ttl(ledger) <= 3600 for ledger in ledgers[:10])
            for first in range(0, len(ledgers), 500):
                redis.delete(*ledgers[first : first + 500])
            return len(ledgers)

    def store_bytes(self) -> int:
        """Memory of what is in the store."""
        with self.redis() as redis:
            return int(redis.info("memory")["used_memory"])


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosingMesh]:
    """A mesh of this module's own."""
    with ClosingMesh(
        tmp_path_factory.mktemp("closed"), "--speed", SPEED, env={"SPOTWISE_MAX_UNREAD_TOKENS": "40"}
    ) as live:
        yield live


@contextlib.asynccontextmanager
async def streams(mesh: LiveMesh, count: int) -> AsyncIterator[Callable[[], int]]:
    """Open `count` long streams at once, closed at the end; yields the number with a first token."""
    begun = 0
    body = {"model": MODEL, "max_tokens": LONG, "ignore_eos": True, "stream": True}

    async def one(client: httpx.AsyncClient, number: int) -> None:
        nonlocal begun
        async with client.stream("POST", "/v1/completions", json={**body, "prompt": f"{number} Once"}) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = answer.aiter_lines()  # kept: a stream whose iterator goes is closed
            while decode_event(await anext(lines)) is None:
                pass
            begun += 1
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


def test_clients_that_leave_while_the_store_does_nothing(mesh: ClosingMesh) -> None:
    """Records of clients that left while Redis was stopped are written when it resumes, start no work, and are deleted."""

    async def leave() -> None:
        async with streams(mesh, CLIENTS):
            await asyncio.sleep(1.0)

    with stopped(mesh.pid("redis-server")):
        asyncio.run(leave())
    mesh.client().completions.create(model=MODEL, prompt="Last in line at the store", max_tokens=1)
    mesh.wait_until_closed()


def test_clients_that_leave_while_there_is_no_scheduler(mesh: ClosingMesh) -> None:
    """Clients leave while no scheduler runs; workers confirm with the gateway instead, since its successor knows
    none of them.
    """

    async def leave() -> None:
        async with streams(mesh, CLIENTS) as begun:
            await until(lambda: begun() == CLIENTS)
            await asyncio.to_thread(wait_for, lambda: mesh.decoding() == CLIENTS, lambda: f"decodes: {mesh.decoding()}")
            os.kill(mesh.pid("scheduler-0"), signal.SIGKILL)
            await asyncio.sleep(0.1)

    asyncio.run(leave())
    mesh.wait_until_closed()


def test_a_client_that_stops_to_read_holds_nothing_until_it_reads_on(mesh: ClosingMesh) -> None:
    """Its sequences are paused where they are generated; it gets every token once, those of a client that reads at once."""
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 600, "n": 16, "seed": 5, "ignore_eos": True}
    body |= {"return_token_ids": True, "logprobs": 5, "stream": True}

    def tokens(lines: Iterator[str]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for line in lines:
            for choice in (decode_event(line) or {}).get("choices", []):
                found.setdefault(choice["index"], []).extend(choice["token_ids"])
        return found

    def running() -> int:
        loads = (status.member_now.load for status in mesh.members())
        return sum(load.running + load.waiting_for_kv for load in loads if load is not None)

    with httpx.Client(base_url=mesh.url, timeout=60.0) as client:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            wait_for(lambda: running() == 0, lambda: f"paused sequences: {running()} run")
            assert "\nspotwise_requests_parked_total{" in mesh.get("/metrics").text
            slow = tokens(itertools.chain([first], lines))
        with client.stream("POST", "/v1/completions", json=body) as answer:
            fast = tokens(answer.iter_lines())
    assert sorted(fast) == list(range(16)) and {len(each) for each in fast.values()} == {600}
    assert slow == fast
    mesh.wait_until_closed()


async def submit_and_leave(mesh: LiveMesh, count: int, seed: int) -> None:
    """Many clients; most leave within half a second, whatever they have by then, and one in five with its first line."""
    rng = random.Random(seed)
    body = {"model": MODEL, "max_tokens": LONG, "ignore_eos": True, "stream": True}
    turn = asyncio.Semaphore(STORM_WIDTH)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        asks = {**body, "prompt": f"{number} Once"}
        async with turn:
            if number % 5 == 0:
                async with client.stream("POST", "/v1/completions", json=asks) as response:
                    await anext(response.aiter_lines())
                return
            asked = asyncio.create_task(client.post("/v1/completions", json=asks))
            await asyncio.sleep(rng.random() / 2)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(one(client, number) for number in range(count)))


def test_a_storm_of_clients_that_submit_and_leave(mesh: ClosingMesh) -> None:
    """Twice a thousand: every count is at zero again, and the second storm costs no process memory that the first did not."""
    sizes = []
    for seed in range(2):
        asyncio.run(submit_and_leave(mesh, STORM, seed))
        mesh.wait_until_closed()
        assert mesh.delete_ledgers() > STORM // 10  # so many came far enough to have one
        sizes.append({**mesh.resident_bytes(), "store": mesh.store_bytes()})
    grown = {name: sizes[1][name] - sizes[0][name] for name in sizes[0]}
    assert max(grown.values()) < SLACK_BYTES, grown


async def until(reached: Callable[[], bool]) -> None:
    """Poll until it is."""
    async with asyncio.timeout(20.0):
        while not reached():  # noqa: ASYNC110 - other processes have no event
            await asyncio.sleep(0.02)
