"""How long requests wait for the store: as long as it answers others, and no longer than it is silent."""

from __future__ import annotations

import asyncio
import time

import pytest

from spotwise.gateway.resume.store_turns import MOST_AT_ONCE, StoreTurns

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
