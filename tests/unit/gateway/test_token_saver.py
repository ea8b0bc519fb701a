"""Tokens of many streams are saved together, and requests wait for the store as long as it answers others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from spotwise.core.gateway.kept_request import KeptTokens, SavedTokens
from spotwise.core.messages.mesh import TokenBatch, TokenDelta
from spotwise.gateway.resume.kept_forms import read_chunks
from spotwise.gateway.resume.store_turns import MOST_AT_ONCE, StoreTurns
from spotwise.gateway.resume.token_saver import TokenSaver
from spotwise.mesh.ports.ports import MeshError
from spotwise.wire.codec import encode
from tests.fakes.memory import MemoryStore

CHOICES = [f"r{number}" for number in range(300)]


class CountingStore(MemoryStore):
    """Remembers what was saved, call by call; each takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, bytes]] = []
        self.fails = False

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        await asyncio.sleep(0.01)
        if self.fails:
            raise MeshError("away")
        self.calls.append({each.request_id: each.chunk for each in tokens})
        return [each.first + each.count for each in tokens]


def saver_of(store: CountingStore) -> TokenSaver:
    saver = TokenSaver(store, lambda _: (None, ()), lambda _: None)
    for choice_id in CHOICES:
        saver.watch(choice_id, "g/1")
    return saver


def token(index: int) -> tuple[TokenDelta, ...]:
    return (TokenDelta(1, index, 7),)


async def test_streams_that_end_in_the_same_moment_share_a_call() -> None:
    """One after the other they would take longer than a gateway lets its parts be silent."""
    store = CountingStore()
    saver = saver_of(store)
    for choice_id in CHOICES:
        saver.add(choice_id, token(0))
    await asyncio.gather(saver.save_all(), *(saver.save(choice_id) for choice_id in CHOICES))
    assert len(store.calls) <= 2
    assert all(any(call.get(choice_id) for call in store.calls) for choice_id in CHOICES)


async def test_a_save_has_the_tokens_that_came_before_it() -> None:
    store = CountingStore()
    saver = saver_of(store)
    saver.add("r0", token(0))
    first = asyncio.create_task(saver.save("r0"))
    await asyncio.sleep(0)
    saver.add("r0", token(1))
    await saver.save("r0")
    await first
    (earlier,) = read_chunks([call["r0"] for call in store.calls if call.get("r0")], 1)
    assert [delta.token_index for delta in earlier.deltas] == [0, 1]


def test_a_chunk_without_the_weights_digest_keeps_the_one_before() -> None:
    """The last chunk of an answer may have none; a digest of one choice is not another's."""
    chunks = [
        b" digest A,B " + encode(TokenBatch("", token(0))),
        b"1   " + encode(TokenBatch("", token(0))),
        b"   " + encode(TokenBatch("", token(1))),
    ]
    first, second = read_chunks(chunks, 2)
    assert (first.model_digest, first.numerics_classes, len(first.deltas)) == ("digest", ("A", "B"), 2)
    assert (second.model_digest, second.numerics_classes, len(second.deltas)) == (None, (), 1)


async def test_what_the_store_does_not_take_is_kept() -> None:
    """All that wait hear of it; the next save has it."""
    store = CountingStore()
    saver, store.fails = saver_of(store), True
    saver.add("r1", token(0))
    failed = await asyncio.gather(saver.save("r1"), saver.save("r2"), return_exceptions=True)
    assert {type(each) for each in failed} == {MeshError}
    store.fails = False
    await saver.save_all()
    assert store.calls[-1]["r1"]


class ForgetfulStore(CountingStore):
    """Knows how many tokens it has of the only choice, and loses all but a few of them where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.have = 0
        self.chunks: list[KeptTokens] = []

    async def save_tokens(self, tokens: Sequence[KeptTokens]) -> list[SavedTokens]:
        for each in tokens:
            if each.first <= self.have < each.first + each.count:
                self.have = each.first + each.count
                self.chunks.append(each)
        return [self.have for _ in tokens]

    def lose_all_but(self, tokens: int) -> None:
        self.chunks = [each for each in self.chunks if each.first + each.count <= tokens]
        self.have = sum(each.count for each in self.chunks)


@pytest.mark.parametrize("left", [0, 70])
@pytest.mark.parametrize("choice_id", ["r", "r#2"])
async def test_tokens_that_came_one_by_one_are_remembered_in_few_chunks(choice_id: str, left: int) -> None:
    """Each takes room of its own; what the store loses of them is saved again, whole, with the digest of their weights."""
    store = ForgetfulStore()
    saver = TokenSaver(store, lambda _: ("digest", ("A", "B")), lambda _: None)
    saver.watch(choice_id, "g/1")
    for index in range(600):
        saver.add(choice_id, token(index))
        await saver.save_all()
    saved_before = len(store.chunks)
    store.lose_all_but(left)
    await saver.save_all()
    assert store.have == 600
    assert saved_before == 600 and len(store.chunks) < left + 50
    earlier = read_chunks((each.chunk for each in store.chunks), 3)[int(choice_id.partition("#")[2] or 0)]
    assert [delta.token_index for delta in earlier.deltas] == [*range(600)]
    assert (earlier.model_digest, earlier.numerics_classes) == ("digest", ("A", "B"))


async def test_large_chunks_stay_as_they_are() -> None:
    """None becomes too large for a message."""
    store = ForgetfulStore()
    saver = TokenSaver(store, lambda _: ("digest", ("A", "B")), lambda _: None)
    saver.watch("r", "g/1")
    for number in range(60):
        saver.add("r", tuple(delta for index in range(900) for delta in token(900 * number + index)))
        await saver.save_all()
    store.lose_all_but(0)
    await saver.save_all()
    assert store.have == 54_000
    assert max(len(each.chunk) for each in store.chunks) < 128 << 10


async def test_who_waits_no_more_takes_nothing_from_the_others() -> None:
    """A time-out of one is not the end of the round."""
    store = CountingStore()
    saver = saver_of(store)
    saver.add("r1", token(0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await saver.save("r0")
    await saver.save("r1")
    assert any(call.get("r1") for call in store.calls)


LIMIT_S = 1.0


class Store:
    """Answers after `takes_s`, or when it is there again."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.tried = self.at_once = self.most_at_once = 0
        self.is_there = asyncio.Event()
        self.is_there.set()

    async def write(self) -> None:
        self.tried += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.is_there.wait()
            await asyncio.sleep(self.takes_s)
        finally:
            self.at_once -= 1


async def write(turns: StoreTurns, store: Store) -> None:
    async with turns.turn():
        await store.write()


async def test_a_crowd_waits_for_longer_than_one_operation_may_take() -> None:
    """In turns; none fails."""
    turns, store = StoreTurns(LIMIT_S), Store(0.1)
    began_s = asyncio.get_running_loop().time()
    await asyncio.gather(*(write(turns, store) for _ in range(15 * MOST_AT_ONCE)))
    assert asyncio.get_running_loop().time() - began_s > LIMIT_S
    assert store.most_at_once == MOST_AT_ONCE


async def test_a_busy_loop_is_not_taken_for_a_silent_store() -> None:
    """The answer, which takes a few iterations to be read, is there long before the loop gets to it."""
    turns, store = StoreTurns(0.02), Store()

    loop, is_over = asyncio.get_running_loop(), False

    def hold_up() -> None:
        time.sleep(0.01)
        if not is_over:
            loop.call_soon(hold_up)

    async def read() -> None:
        async with turns.turn():
            await store.write()
            for _ in range(8):
                await asyncio.sleep(0)

    hold_up()
    await asyncio.gather(*(read() for _ in range(3)))
    is_over = True


async def test_all_fail_together_where_the_store_is_silent() -> None:
    """Those that wait do not try one after the other."""
    turns, store = StoreTurns(0.2), Store()
    store.is_there.clear()
    failed = await asyncio.gather(*(write(turns, store) for _ in range(20 * MOST_AT_ONCE)), return_exceptions=True)
    assert {type(each) for each in failed} == {TimeoutError}
    assert store.tried < 3 * MOST_AT_ONCE


async def test_what_comes_while_the_store_is_silent_tries_it_one_by_one() -> None:
    """And the first that succeeds lets all others in again."""
    turns, store = StoreTurns(0.2), Store()
    store.is_there.clear()
    with pytest.raises(TimeoutError):
        await write(turns, store)
    trial = asyncio.create_task(write(turns, store))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await write(turns, store)
    assert store.tried == 2
    store.is_there.set()
    await trial
    await asyncio.gather(*(write(turns, store) for _ in range(3)))


async def test_a_client_that_leaves_gives_its_turn_back() -> None:
    turns, store = StoreTurns(LIMIT_S), Store()
    store.is_there.clear()
    clients = [asyncio.create_task(write(turns, store)) for _ in range(2 * MOST_AT_ONCE)]
    await asyncio.sleep(0)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    store.is_there.set()
    await asyncio.gather(*(write(turns, store) for _ in range(2 * MOST_AT_ONCE)))
