"""A real store that executes and answers late, or executes late: a key is charged for what its requests used."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from spotwise.core.access.quotas import KeyReport
from spotwise.gateway.access.quotas import COUNT_ALONE_S, COUNT_TIMEOUT_S, Quotas
from spotwise.mesh.redis.keys import RedisKeys
from spotwise.mesh.redis.store import RedisStore
from tests.contracts.lossy_keys import CALLER, LIMITS, OUTPUTS, Fate, Step, count
from tests.fakes.memory import FakeClock

pytestmark = pytest.mark.mesh

#: After a gateway has given up.
LATE_S = COUNT_TIMEOUT_S + 0.1


class SlowAnswers:
    """A proxy of a server, whose answers it holds back for `delay_s`."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self.delay_s = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen; give the URL."""
        self._pumps = set[asyncio.Task[None]]()
        self._writers: list[asyncio.StreamWriter] = []
        async with AsyncExitStack() as stack:
            listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            stack.callback(listener.close)
            yield self._server._replace(netloc=f"127.0.0.1:{listener.sockets[0].getsockname()[1]}").geturl()
            for pump in self._pumps:
                pump.cancel()
            for writer in self._writers:
                writer.close()
            ends = [writer.wait_closed() for writer in self._writers]
            await asyncio.gather(*self._pumps, *ends, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._writers += writer, to_server
        for source, target, is_answer in ((reader, to_server, False), (from_server, writer, True)):
            self._pumps.add(asyncio.create_task(self._pump(source, target, is_answer=is_answer)))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if is_answer:
                    await asyncio.sleep(self.delay_s)
                target.write(data)
                await target.drain()
        target.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000.0 // 86_400 * 86_400)


async def used_day_tokens(store: RedisStore) -> int:
    """What the server has counted by now."""
    return (await store.keys.use(CALLER.name, LIMITS, KeyReport("reader"))).used_day_tokens


@pytest.mark.parametrize("executes_late", [False, True])
async def test_a_store_that_answers_late(redis_url: str, store: RedisStore, executes_late: bool) -> None:
    """Requests that begin and end meanwhile are counted once, whether the server executes at once or when no request waits."""
    answers, clock = SlowAnswers(redis_url), FakeClock(time.time())
    async with AsyncExitStack() as stack:
        slow = await RedisStore.connect(await stack.enter_async_context(answers.open()))
        stack.push_async_callback(slow.close)
        admin = await stack.enter_async_context(Redis.from_url(redis_url))
        quotas = Quotas(slow.keys, clock, "g/1", lambda _: None)
        running = [await quotas.reserve(CALLER, 1000, OUTPUTS) for _ in range(8)]
        for reservation in running[:4]:
            reservation.settle(10)

        async def stall() -> None:
            if executes_late:
                await admin.execute_command("CLIENT", "PAUSE", str(int(LATE_S * 1000)))
            else:
                answers.delay_s = LATE_S

        await stall()
        running += await asyncio.gather(*[quotas.reserve(CALLER, 1000, OUTPUTS) for _ in range(5)])
        clock.advance(COUNT_ALONE_S)
        await asyncio.sleep(2 * LATE_S)
        await stall()
        await quotas.report(renew=True)  # in vain
        answers.delay_s = 0.0
        await asyncio.sleep(2 * LATE_S)
        clock.advance(COUNT_ALONE_S)
        for reservation in running[4:]:
            reservation.settle(10)
        for _ in range(2):
            await quotas.report(renew=False)
        assert not quotas._books
    assert await used_day_tokens(store) == 13 * 1010


@pytest.mark.parametrize("seed", range(8))
async def test_calls_may_be_lost_repeated_and_late(
    store: RedisStore, clock: FakeClock, redis_url: str, seed: int
) -> None:
    rng = random.Random(seed)
    kinds, fates = ("begin", "end", "report", "late", "wait"), list(Fate)
    steps = [Step(rng.choice(kinds), rng.randint(0, 5000), rng.choice(fates)) for _ in range(120)]
    used, counted = await count(RedisKeys(store._redis, store._turn, clock), clock, steps)
    assert counted == used
