"""Work off the event loop: what runs at once and what waits is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from spotwise.gateway.errors import ApiError
from spotwise.gateway.loop_turns import AT_ONCE
from spotwise.gateway.off_loop import INLINE_BYTES, LARGE_BYTES, OffLoop
from tests.contracts.waiting import PATIENCE_S


async def test_small_work_is_done_at_once_and_other_work_in_threads() -> None:
    """Work up to `INLINE_BYTES` runs on the event loop, larger work in threads."""
    off_loop = OffLoop()
    here = threading.get_ident()
    assert await off_loop.run(INLINE_BYTES, threading.get_ident) == here
    assert await off_loop.run(INLINE_BYTES + 1, threading.get_ident) != here
    assert await off_loop.run(LARGE_BYTES + 1, threading.get_ident) != here


async def test_a_crowd_of_small_work_leaves_the_loop_to_others() -> None:
    """Of a thousand that come at once, in order of arrival, a few are done in each iteration; who left has no turn."""
    off_loop = OffLoop()
    iteration = 0
    done: list[tuple[int, int]] = []

    async def count() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())

    def note(number: int) -> None:
        done.append((iteration, number))

    crowd = [asyncio.create_task(off_loop.run(1, note, number)) for number in range(1000)]
    for left in crowd[500:510]:
        asyncio.get_running_loop().call_soon(left.cancel)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*crowd, return_exceptions=True)
    counting.cancel()
    assert [number for _, number in done] == [*range(500), *range(510, 1000)]
    assert max(Counter(each for each, _ in done).values()) <= AT_ONCE


async def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await OffLoop().run(LARGE_BYTES + 1, lambda: 1 // 0)


async def test_large_work_is_done_one_by_one_and_does_not_keep_small_work_waiting() -> None:
    """Large work stays serial after its client left: its thread cannot be stopped, and keeps its memory."""
    off_loop = OffLoop()
    go_on, running, most = threading.Event(), 0, 0

    def work() -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert go_on.wait(PATIENCE_S)
        running -= 1
        return running

    tasks = [asyncio.create_task(off_loop.run(LARGE_BYTES + 1, work)) for _ in range(4)]
    assert await off_loop.run(LARGE_BYTES, lambda: "small") == "small"
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.sleep(0.05)
    assert running == 1
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*tasks[2:]) == [0, 0]
    assert most == 1


async def test_more_than_may_wait_is_refused_with_503() -> None:
    """Work beyond the queue's bound is refused with 503 at once."""
    off_loop = OffLoop()
    go_on = threading.Event()
    tasks = [asyncio.create_task(off_loop.run(LARGE_BYTES + 1, go_on.wait, PATIENCE_S)) for _ in range(17)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await off_loop.run(LARGE_BYTES + 1, go_on.wait)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert all(await asyncio.gather(*tasks))
