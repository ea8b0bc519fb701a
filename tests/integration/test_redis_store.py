"""The store over a real Redis server: its contract, what it leaves behind, and what a server's death and return are like."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from redis.asyncio import Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from spotwise.core.access.store_budget import Kind
from spotwise.core.gateway.kept_request import KeptTokens
from spotwise.mesh.embedded.servers import free_port, redis_server
from spotwise.mesh.ports.ports import MeshError, MeshStore
from spotwise.mesh.redis.ledgers import LEDGER_TTL_S
from spotwise.mesh.redis.records import RECORD_TTL_S
from spotwise.mesh.redis.requests import CLAIM_TTL_S, KEPT_TTL_S
from spotwise.mesh.redis.store import FLEET_TTL_S, INCARNATION_TTL_S, PLAN_TTL_S, RedisStore
from spotwise.wire import subjects
from tests.contracts.requests import FORM, OWNER, RequestStoreContract
from tests.contracts.responses import KEPT_S, RESPONSE, SMALL, ResponseStoreContract
from tests.contracts.rooms import RoomContract
from tests.contracts.store import FLEET, LONG_S, MEMBER, PLAN, RECORD, StoreContract, entry

pytestmark = pytest.mark.mesh

ROOT = Path(__file__).parents[2]


class TestRedisStore(StoreContract, RequestStoreContract, ResponseStoreContract, RoomContract):
    async def lose_turns(self, store: MeshStore, request_id: str, owner: str) -> None:
        assert isinstance(store, RedisStore)
        await store._redis.hset(subjects.kept_request_key(request_id), "owner", owner)

    @pytest.fixture
    async def small_store(self, redis_url: str) -> AsyncIterator[RedisStore]:
        """The same with little room."""
        store = await RedisStore.connect(redis_url, budget=SMALL)
        yield store
        await store.close()

    async def test_a_transport_that_was_closed_is_a_lost_connection(
        self, store: RedisStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """uvloop says so with an error of its own, between a connection's check and its use; the call is repeated."""
        send, closed = Connection.send_packed_command, 2

        async def fails(self: Connection, *args: Any, **kwargs: Any) -> None:
            nonlocal closed
            closed -= 1
            if closed >= 0:
                await self.disconnect()
                raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
            await send(self, *args, **kwargs)

        monkeypatch.setattr(Connection, "send_packed_command", fails)
        await store.put_record(RECORD)
        assert await store.get_record(RECORD.choice_id) == RECORD
        assert closed < 0

    async def test_a_time_limit_ends_calls_wherever_it_finds_them(self, store: RedisStore) -> None:
        """Also while a command is sent, where redis-py and Python 3.11 drop a cancellation."""
        ended = 0
        for attempt in range(200):
            try:
                async with asyncio.timeout(0.0002 + attempt * 0.00001):
                    while (task := asyncio.current_task()) is not None and not task.cancelling():
                        await store.get_ledger("r")
            except TimeoutError:
                ended += 1
        assert ended == 200
        await store.append_ledger(entry("r", 1.0))
        assert [each.stage for each in await store.get_ledger("r")] == ["assigned"]

    async def test_nothing_stays_for_ever(self, store: RedisStore, redis_url: str) -> None:
        """Records, ledgers and registrations have a time to live, so that a mesh that died leaves no litter."""
        await store.put_record(RECORD)
        await store.append_ledger(entry(RECORD.choice_id, 1.0))
        await store.register(MEMBER, LONG_S)
        await store.hold_term(subjects.PLANNER, "planner/1", 1, LONG_S)
        assert await store.put_plan("planner/1", PLAN)
        assert await store.put_fleet("default", FLEET)
        await store.keep_request(FORM, OWNER)
        await store.save_tokens([KeptTokens(FORM.request_id, OWNER, 0, 0, 1, b"tokens")])
        await store.responses.put_response(RESPONSE, KEPT_S)
        async with Redis.from_url(redis_url, decode_responses=True) as redis:
            lives_s = {key: await redis.ttl(key) for key in await redis.keys("*")}
        longest_s = {
            subjects.request_key(RECORD.choice_id): RECORD_TTL_S,
            subjects.ledger_key(RECORD.choice_id): LEDGER_TTL_S,
            subjects.member_key(MEMBER.id): LONG_S,
            subjects.incarnation_key(MEMBER.id): INCARNATION_TTL_S,
            subjects.lease_key(subjects.PLANNER): LONG_S,
            subjects.term_key(subjects.PLANNER): INCARNATION_TTL_S,
            subjects.term_holder_key(subjects.PLANNER): INCARNATION_TTL_S,
            subjects.PLAN_KEY: PLAN_TTL_S,
            subjects.fleet_key("default"): FLEET_TTL_S,
            subjects.kept_request_key(FORM.request_id): KEPT_TTL_S,
            subjects.kept_tokens_key(FORM.request_id): KEPT_TTL_S,
            subjects.claim_key(FORM.claim): CLAIM_TTL_S,
            subjects.response_key(RESPONSE.response_id): KEPT_S,
            **rooms(Kind.RECORDS, 2 * RECORD_TTL_S, RECORD.tenant),
            **rooms(Kind.LEDGERS, 2 * LEDGER_TTL_S),
            **rooms(Kind.REQUESTS, 2 * KEPT_TTL_S, FORM.scope),
            **rooms(Kind.RESPONSES, 2 * KEPT_S, RESPONSE.scope),
        }
        assert lives_s.keys() == longest_s.keys()
        assert all(0 < lives_s[key] <= longest_s[key] for key in longest_s)


def rooms(kind: Kind, longest_s: float, *scopes: str) -> dict[str, float]:
    """The keys of a kind's room, and how long they live."""
    of_scopes = [f"{subjects.room_key(kind)}:of:{scope}" for scope in scopes]
    names = [subjects.room_key(kind), f"{subjects.room_key(kind)}:entries", subjects.room_bytes_key(kind), *of_scopes]
    return dict.fromkeys(names, longest_s)


async def test_a_server_that_does_not_answer_is_a_mesh_error_everywhere() -> None:
    unretried = Retry(NoBackoff(), 0)
    store = RedisStore(Redis.from_url(f"redis://127.0.0.1:{free_port()}/0", retry=unretried))
    for asking in (
        store.put_record(RECORD),
        store.get_record("a"),
        store.delete_record("a"),
        store.append_ledger(entry("a", 1.0)),
        store.get_ledger("a"),
        store.register(MEMBER, LONG_S),
        store.unregister("a"),
        store.members(),
    ):
        with pytest.raises(MeshError, match="Redis: "):
            await asking
    await store.close()


async def test_a_servers_restart_is_a_pause(tmp_path: Path) -> None:
    server = redis_server(tmp_path)
    child = await asyncio.to_thread(server.start)
    store = await RedisStore.connect(server.url)
    try:
        await store.put_record(RECORD)
        child.kill()
        waiting = asyncio.gather(store.register(MEMBER, LONG_S), store.append_ledger(entry("a", 1.0)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        child = await asyncio.to_thread(server.start)
        await waiting
        assert await store.members() == [MEMBER]
        assert await store.get_ledger("a") == [entry("a", 1.0)]
        assert await store.get_record(RECORD.choice_id) is None  # it kept nothing on disk
    finally:
        await store.close()
        child.stop()


async def test_what_is_kept_for_long_survives_the_store_as_it_is_shipped(tmp_path: Path) -> None:
    """With the options of docker-compose.yml, the store's end loses neither the plan nor the lease, the fleet's record nor a
    member's incarnation: all but the last second's writes.
    """
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]["command"]
    command = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in command]  # as Compose fills in what nothing sets
    given = dict(zip(command[1::2], command[2::2], strict=True))
    assert given["--appendfsync"] == "everysec"
    server = redis_server(tmp_path)
    options = {**given, "--bind": "127.0.0.1", "--dir": str(tmp_path), "--port": str(server.port)}
    argv = (server.argv[0], *(word for option in options.items() for word in option))
    shipped = dataclasses.replace(server, argv=argv)
    child = shipped.start()
    store = await RedisStore.connect(shipped.url)
    try:
        assert await store.hold_term(subjects.PLANNER, "a/1", 100, LONG_S) == 100
        assert await store.put_plan("a/1", PLAN)
        assert await store.put_fleet("mesh", FLEET)
        assert await store.next_incarnation("w", 7) == 7
        await asyncio.sleep(1.5)  # the file is flushed each second
        child.kill()
        child = shipped.start()
        assert await store.get_plan() == PLAN
        assert await store.get_fleet("mesh") == FLEET
        assert await store.hold_term(subjects.PLANNER, "b/1", 200, LONG_S) is None
        assert await store.hold_term(subjects.PLANNER, "a/1", 200, LONG_S) == 100
        assert await store.next_incarnation("w", 7) == 8
    finally:
        await store.close()
        child.stop()
