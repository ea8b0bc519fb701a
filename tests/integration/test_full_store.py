"""A real Redis with a limit, as it is shipped but smaller: one key's load does not fill it, and one that is full serves on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from redis.exceptions import OutOfMemoryError

from spotwise.core.access.quotas import Ask, KeyLimits, KeyReport
from spotwise.core.access.store_budget import (
    ALLOCATED_PER_BYTE,
    DEFAULT_STORE_BYTES,
    HEADROOM_BYTES,
    SHIPPED_MAXMEMORY_BYTES,
    Kind,
    RoomVerdict,
    StoreBudget,
)
from spotwise.core.gateway.kept_request import KeptEnding, KeptTokens, NotSaved, StoredResponse, process_of
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import EmbeddedServer, redis_server, running
from spotwise.mesh.redis.store import RedisStore
from spotwise.wire import subjects
from tests.contracts.key_store import KEY
from tests.contracts.requests import FORM, OWNER
from tests.contracts.store import FLEET, LONG_S, MEMBER, PLAN, RECORD, entry

pytestmark = pytest.mark.mesh

ROOT = Path(__file__).parents[2]
#: A 24th of what is shipped, and more for what does not shrink with it: the server itself, and a connection.
SCALE = 24
MAXMEMORY_BYTES = SHIPPED_MAXMEMORY_BYTES // SCALE
BUDGET = StoreBudget(DEFAULT_STORE_BYTES // SCALE)
FINISHED = KeptEnding("finished")
KEPT_S = 600.0


def test_all_that_is_kept_has_room_in_the_store_as_it_is_shipped(tmp_path: Path) -> None:
    """Whatever the number of gateways: the budget is the store's. Primary and replica have the same limit, and so has the
    embedded store.
    """
    default = GatewaySettings.model_fields["store_bytes"].default
    assert sum(StoreBudget(default).room(kind).all_bytes for kind in Kind) <= default == DEFAULT_STORE_BYTES
    assert default * ALLOCATED_PER_BYTE + HEADROOM_BYTES <= SHIPPED_MAXMEMORY_BYTES
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("redis", "redis-replica"):
        command = " ".join(services[name]["command"])
        (limit,) = re.findall(r"--maxmemory \$\{SPOTWISE_REDIS_MAXMEMORY:-(\d+)mb\}", command)
        assert int(limit) << 20 == SHIPPED_MAXMEMORY_BYTES
        assert "--maxmemory-policy" not in command  # nothing goes that the mesh did not choose
    argv = redis_server(tmp_path).argv
    assert argv[argv.index("--maxmemory") + 1] == str(SHIPPED_MAXMEMORY_BYTES)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    with running(redis_server(tmp_path, maxmemory_bytes=MAXMEMORY_BYTES)) as server:
        yield server


@pytest.fixture
async def store(server: EmbeddedServer) -> AsyncIterator[RedisStore]:
    store = await RedisStore.connect(server.url, budget=BUDGET)
    yield store
    await store.close()


async def used_bytes(store: RedisStore) -> int:
    return int((await store._redis.info("memory"))["used_memory"])


async def counted_bytes(store: RedisStore) -> int:
    return sum(use.used_bytes for use in (await store.room_use()).values())


async def fill(store: RedisStore, missing_bytes: int) -> None:
    """Let the server use so much more than its limit, for what is none of the mesh's."""
    # By a script: a client's buffers for so much are given back a while later.
    await store._redis.eval(f"return redis.call('SET', 'junk', string.rep('x', {4 << 20})) and 1", 0)  # type: ignore[misc]
    await store._redis.config_set("maxmemory", await used_bytes(store) - missing_bytes)


async def serves(store: RedisStore, number: int) -> None:
    """All that a request and its members need of the store is done."""
    choice_id = f"chatcmpl-other-{number}"
    record = replace(RECORD, choice_id=choice_id, tenant="other")
    await store.put_record(record)
    assert await store.get_record(choice_id) == record
    await store.delete_record(choice_id)
    await store.register(MEMBER, LONG_S)
    assert await store.members() == [MEMBER]
    incarnation = await store.next_incarnation("w", 7)
    assert await store.next_incarnation("w", 7) == incarnation + 1
    assert await store.hold_term(subjects.PLANNER, "planner/1", 1, LONG_S)
    assert await store.put_plan("planner/1", PLAN)
    assert await store.put_fleet("default", FLEET)
    assert await store.get_plan() == PLAN
    limits = KeyLimits(requests_per_minute=10**6, max_streams=10**6)
    admission = await store.keys.use("other", limits, KeyReport("g0/1", number), Ask(number, 10))
    assert admission.refused_by is None


async def test_ledgers_without_end_leave_room_for_all_else(store: RedisStore) -> None:
    """The oldest go; embeddings of hundreds of inputs fill theirs."""
    for number in range(300):
        entries = [
            entry(
                f"embd-{number}#{index}", float(index), "prefilled", prompt_worker="prompt-worker-7c9d", queue_s=0.0123
            )
            for index in range(256)
        ]
        await store.append_ledger(*entries)
    use = (await store.room_use())[Kind.LEDGERS]
    assert use.used_bytes <= use.most_bytes == BUDGET.room(Kind.LEDGERS).all_bytes
    assert len(await store.get_ledger("embd-299")) == 256
    assert await store.get_ledger("embd-0") == []
    assert await used_bytes(store) < MAXMEMORY_BYTES / 2
    await serves(store, 0)


async def test_a_ledger_that_goes_on_is_the_youngest(store: RedisStore) -> None:
    """And counts what it has now: the trimmed entries give their room back."""
    for number in range(2000):
        await store.append_ledger(entry("a", float(number), facts="x" * 100))
    ledger = await store.get_ledger("a")
    assert [each.at_s for each in ledger] == [float(number) for number in range(2000 - 256, 2000)]
    use = (await store.room_use())[Kind.LEDGERS]
    assert use.used_bytes < 256 * 400 + 2000


@pytest.mark.parametrize("body", ["x" * 40_000, "😀" * 10_000, '\\"' * 20_000])
async def test_one_key_that_keeps_all_it_can_leaves_room_for_others(store: RedisStore, body: str) -> None:
    """Requests, tokens, responses, records and ledgers of one key, of whatever sizes, up to its share; what the server uses is
    what was counted.
    """
    empty_bytes = await used_bytes(store)
    ended = 0
    for number in range(2000):
        form = replace(FORM, request_id=f"chatcmpl-{number}", claim=f"key-{number}", body=body[number * 7 % 1000 :])
        verdict = await store.keep_request(form, OWNER)
        if verdict is RoomVerdict.KEPT:
            await store.save_tokens([KeptTokens(form.request_id, OWNER, 0, 0, 1, b"t" * (number % 4000))])
            if number % 3 and await store.end_request(form, OWNER, FINISHED, KEPT_S):
                ended += 1
        else:
            assert verdict is RoomVerdict.NO_ROOM_FOR_SCOPE
        response = StoredResponse(f"resp_{number}", "acme", form.body.encode(), b"[]")
        assert await store.responses.put_response(response, KEPT_S) is RoomVerdict.KEPT
        if number < 500:
            await store.put_owned_record(replace(RECORD, choice_id=form.request_id), OWNER)
        await store.append_ledger(entry(form.request_id, 1.0, prompt_worker="prompt-0"))
    assert ended > 100
    for kind, use in (await store.room_use()).items():
        room = BUDGET.room(kind)
        assert use.used_bytes <= (room.scope_bytes or room.all_bytes), kind
    used, counted = await used_bytes(store) - empty_bytes, await counted_bytes(store)
    assert counted > BUDGET.total_bytes / 4
    assert used <= counted * ALLOCATED_PER_BYTE + (1 << 20)
    other = replace(FORM, request_id="chatcmpl-mine", scope="mine", claim="")
    assert await store.keep_request(other, OWNER) is RoomVerdict.KEPT
    assert (
        await store.responses.put_response(StoredResponse("resp_mine", "mine", b"{}", b"[]"), KEPT_S)
        is RoomVerdict.KEPT
    )
    await serves(store, 1)


async def test_small_entries_count_what_they_take(store: RedisStore) -> None:
    """Thousands of them: keys, indexes and sums included."""
    empty_bytes = await used_bytes(store)
    for number in range(1000):
        form = replace(FORM, request_id=f"chatcmpl-{number:032}", claim=f"{number:064}", scope="s" * 64)
        assert await store.keep_request(form, OWNER) is RoomVerdict.KEPT
        record = replace(RECORD, choice_id=form.request_id)
        assert await store.put_owned_record(record, OWNER)
        await store.save_tokens([KeptTokens(form.request_id, OWNER, 0, 0, 1, b"token")])
        await store.append_ledger(entry(form.request_id, 1.0))
        response = StoredResponse(f"resp_{number:032}", "s" * 64, b"{}", b"[]")
        assert await store.responses.put_response(response, KEPT_S) is RoomVerdict.KEPT
    used, counted = await used_bytes(store) - empty_bytes, await counted_bytes(store)
    assert used <= counted * ALLOCATED_PER_BYTE + (1 << 20)


async def test_a_store_without_memory_serves_and_keeps_nothing(store: RedisStore) -> None:
    """Whatever has filled it. What is kept already is read, and ends; and the store says that it was full."""
    running_form, ended_form = (replace(FORM, request_id=f"chatcmpl-{name}", claim=name) for name in ("runs", "ended"))
    for form in (running_form, ended_form):
        assert await store.keep_request(form, OWNER) is RoomVerdict.KEPT
        await store.save_tokens([KeptTokens(form.request_id, OWNER, 0, 0, 1, b"token")])
    await store.put_owned_record(replace(RECORD, choice_id="chatcmpl-runs"), OWNER)
    assert await store.keys.put_key(KEY, None)
    await fill(store, 2 << 20)
    with pytest.raises(OutOfMemoryError):
        await store._redis.set("more", b"x")
    for number in range(3):
        await serves(store, number)
    for verdict in (
        await store.keep_request(replace(FORM, request_id="chatcmpl-new", claim=""), OWNER),
        await store.responses.put_response(StoredResponse("resp_1", "acme", b"{}", b"[]"), KEPT_S),
    ):
        assert verdict is RoomVerdict.NO_ROOM
    await store.append_ledger(entry("chatcmpl-new", 1.0))
    assert await store.get_ledger("chatcmpl-new") == []
    assert await store.put_owned_record(replace(RECORD, choice_id="chatcmpl-runs", epoch=2), OWNER)
    taken = await store.take_request("chatcmpl-runs", "g1/1")
    assert taken is not None and process_of(taken.owner) == "g1/1"
    claimed = await store.claimed_request("ended")
    assert claimed is not None and claimed.chunks == (b"token",)
    assert (await store.keys.keys()).keys == {KEY.name: KEY}
    changed = replace(KEY, limits=KeyLimits(requests_per_minute=7))
    assert await store.keys.put_key(changed, KEY)
    await store.keys.note_use({KEY.name: 1_700_000_000.0})
    assert await store.keys.last_use() == {KEY.name: 1_700_000_000.0}
    saved = await store.save_tokens([KeptTokens("chatcmpl-runs", taken.owner, 0, 1, 1, b"more")])
    assert saved == [NotSaved.NO_ROOM]
    assert await store.end_request(ended_form, OWNER, FINISHED, KEPT_S)
    now_unix_s = float((await store._redis.time())[0])
    full = {kind for kind, use in (await store.room_use()).items() if use.is_full(now_unix_s)}
    assert full == {Kind.REQUESTS, Kind.RESPONSES, Kind.LEDGERS}


async def test_in_a_store_without_memory_new_answers_take_the_place_of_old_ones(store: RedisStore) -> None:
    """Of their kind, so that it uses no more than before."""
    for number in range(20):
        form = replace(FORM, request_id=f"chatcmpl-{number}", claim="", body="x" * 2000)
        await store.keep_request(form, OWNER)
        await store.end_request(form, OWNER, FINISHED, KEPT_S)
        await store.responses.put_response(StoredResponse(f"resp_{number}", "acme", b"x" * 2000, b"[]"), KEPT_S)
        await store.append_ledger(entry(f"chatcmpl-{number}", 1.0))
    await fill(store, 1 << 10)
    before = await used_bytes(store)
    for number in range(20, 60):
        form = replace(FORM, request_id=f"chatcmpl-{number}", claim="", body="x" * 2000)
        assert await store.keep_request(form, OWNER) is RoomVerdict.KEPT
        assert await store.save_tokens([KeptTokens(form.request_id, OWNER, 0, 0, 1, b"token")]) == [1]
        await store.end_request(form, OWNER, FINISHED, KEPT_S)
        response = StoredResponse(f"resp_{number}", "acme", b"x" * 2000, b"[]")
        assert await store.responses.put_response(response, KEPT_S) is RoomVerdict.KEPT
        await store.append_ledger(entry(f"chatcmpl-{number}", 1.0))
        assert len(await store.get_ledger(f"chatcmpl-{number}")) == 1
    assert await store.get_request("chatcmpl-0") is None
    assert await store.get_request("chatcmpl-59") is not None
    assert await used_bytes(store) < before + (1 << 20)


async def test_what_died_gives_its_room_back(server: EmbeddedServer) -> None:
    """Of gateways that did not come back: by its time to live, as the server counts."""
    store = await RedisStore.connect(server.url, budget=StoreBudget(60_000))
    try:
        for number in range(3):
            form = replace(FORM, request_id=f"chatcmpl-{number}", claim="", body="x" * 1500)
            assert await store.keep_request(form, OWNER) is RoomVerdict.KEPT
            await store.end_request(form, OWNER, FINISHED, 0.2)
        await asyncio.sleep(0.3)
        assert (await store.room_use())[Kind.REQUESTS].used_bytes > 0
        await store.keep_request(replace(FORM, request_id="chatcmpl-9", claim=""), OWNER)
        use = (await store.room_use())[Kind.REQUESTS]
        assert use.used_bytes < 2500
    finally:
        await store.close()
