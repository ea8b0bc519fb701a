"""The store over Redis with Sentinel: its contract, and what the loss of the primary under load is like."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from spotwise.mesh.embedded.servers import free_port
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.background_work import end_tasks
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from tests.clusters import RedisServers, running_redis_servers
from tests.contracts.store import LONG_S, MEMBER, PLAN, RECORD, StoreContract

pytestmark = pytest.mark.mesh


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServers]:
    with running_redis_servers(tmp_path_factory.mktemp("sentinel")) as running:
        yield running


@pytest.fixture
async def store(servers: RedisServers) -> AsyncIterator[RedisStore]:
    servers.wait_until_replicated()
    with servers.client(servers.primary()) as client:
        client.flushall()
    store = await RedisStore.connect(servers.url)
    yield store
    await store.close()


class TestStoreOfAPrimary(StoreContract):
    pass


async def test_a_primary_that_is_demoted_is_left(servers: RedisServers, store: RedisStore) -> None:
    """A script that writes to what is a replica now is sent to the new primary."""
    await store.register(MEMBER, LONG_S)
    old = servers.primary()
    with servers.client(servers.sentinel_ports[0]) as sentinel:
        sentinel.connection_pool.connection_kwargs.pop("password")
        sentinel.execute_command("SENTINEL", "FAILOVER", "spotwise")
    ends = asyncio.create_task(asyncio.to_thread(servers.wait_until_primary, servers.other(old)))
    incarnation = 0
    while not ends.done():
        newer = await store.next_incarnation("w", 1)
        assert newer >= 1
        incarnation = newer
        await asyncio.sleep(0.01)
    await ends
    servers.make_replica(old)
    assert await store.next_incarnation("w", 1) >= 1
    assert incarnation > 1


async def test_a_time_limit_ends_calls_that_ask_sentinels(store: RedisStore) -> None:
    """As `test_a_time_limit_ends_calls_wherever_it_finds_them`, with connections that are made anew for each call."""
    ended = 0
    for attempt in range(200):
        try:
            async with asyncio.timeout(0.001 + attempt * 0.00002):
                while (task := asyncio.current_task()) is not None and not task.cancelling():
                    await store._redis.connection_pool.disconnect()
                    await store.get_ledger("r")
        except TimeoutError:
            ended += 1
    assert ended == 200
    assert await store.get_ledger("r") == []


async def _load(store: RedisStore, put: list[int]) -> None:
    """Write record after record and read it back, for ever; a call that fails raises."""
    for number in itertools.count(1):
        await store.put_record(replace(RECORD, choice_id=f"cmpl-{number}#0"))
        put.append(number)
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_primarys_loss_under_load_is_a_pause(
    servers: RedisServers, store: RedisStore, fault: signal.Signals
) -> None:
    """Whether it dies or stands still, no call fails; what a replica had is there, and no planner's term is given twice."""
    old = servers.primary()
    new = servers.other(old)
    put: list[int] = []
    load = asyncio.create_task(_load(store, put))
    try:
        assert await store.hold_term(subjects.PLANNER, "a/1", 100, 1.5) == 100
        assert await store.put_plan("a/1", PLAN)
        await asyncio.to_thread(servers.wait_until_replicated)
        while len(put) < 50:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
        os.kill(servers.children[old].pid, fault)
        await asyncio.to_thread(servers.wait_until_primary, new)
        seen = len(put)
        while len(put) < seen + 50:
            assert not load.done(), load.exception()
            await asyncio.sleep(0.01)
        assert await store.get_plan() == PLAN
        assert await store.hold_term(subjects.PLANNER, "b/1", 100, LONG_S) == 101
        if fault is signal.SIGKILL:
            servers.children[old].kill()
            servers.start_server(old, replica_of=new)
        else:
            os.kill(servers.children[old].pid, signal.SIGCONT)
        assert await store.hold_term(subjects.PLANNER, "b/1", 100, LONG_S) == 101
        assert not load.done(), load.exception()
        kept = [number for number in put if await store.get_record(f"cmpl-{number}#0") is not None]
        assert len(kept) >= len(put) - 5  # what the replica had not received
        assert kept[-50:] == put[-50:]
    finally:
        await end_tasks([load])


async def test_sentinels_that_do_not_answer_are_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names them, without the password."""
    monkeypatch.setattr("spotwise.mesh.redis.store.PATIENCE_S", 0.5)
    url = f"redis+sentinel://:hush@127.0.0.1:{free_port()},127.0.0.1:{free_port()}/spotwise/0"
    with pytest.raises(MeshError, match="no Redis server answers at") as raised:
        await RedisStore.connect(url)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:hush@a:1",
        "redis+sentinel://:hush@a:port/name/0",
        "redis+sentinel://:hush@:1/name",
        "redis+sentinel://a/n/x",
        "hush@host",
    ],
)
async def test_a_wrong_url_is_an_error_that_does_not_quote_it(url: str) -> None:
    """Neither scheme, name of the primary, port, host nor number of the database may be missing or wrong."""
    with pytest.raises(MeshError, match="the store's URL is wrong") as raised:
        await RedisStore.connect(url)
    assert "hush" not in str(raised.value)
