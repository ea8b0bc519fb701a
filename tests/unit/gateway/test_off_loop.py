"""Work off the event loop: what runs at once and what waits is bounded, and no key delays another."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest

from spotwise.gateway.access.auth import ApiKey
from spotwise.http.errors import ApiError
from spotwise.http.event_loop import AT_ONCE, INLINE_BYTES, LARGE_BYTES, Effort, OffLoop, effort_of_size
from spotwise.text.chat_text import ChatText
from tests.contracts.waiting import PATIENCE_S, until
from tests.unit.gateway.apps import MakeApp, connect
from tests.unit.gateway.fake_mesh import CHAT, CHATS


async def test_small_work_is_done_at_once_and_other_work_in_threads() -> None:
    """Work up to `INLINE_BYTES` runs on the event loop, larger work in threads, and that with grammars."""
    off_loop = OffLoop()
    here = threading.get_ident()
    assert await off_loop.run("k", effort_of_size(INLINE_BYTES), threading.get_ident) == here
    for effort in (effort_of_size(INLINE_BYTES + 1), effort_of_size(LARGE_BYTES + 1), Effort.GRAMMAR):
        assert await off_loop.run("k", effort, threading.get_ident) != here


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

    crowd = [asyncio.create_task(off_loop.run("k", Effort.ON_LOOP, partial(note, number))) for number in range(1000)]
    for left in crowd[500:510]:
        asyncio.get_running_loop().call_soon(left.cancel)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*crowd, return_exceptions=True)
    counting.cancel()
    assert [number for _, number in done] == [*range(500), *range(510, 1000)]
    assert max(Counter(each for each, _ in done).values()) <= AT_ONCE


async def test_errors_come_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await OffLoop().run("k", Effort.LARGE, lambda: 1 // 0)


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

    tasks = [asyncio.create_task(off_loop.run("k", Effort.LARGE, work)) for _ in range(4)]
    assert await off_loop.run("k", effort_of_size(LARGE_BYTES), lambda: "small") == "small"
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.sleep(0.05)
    assert running == 1
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*tasks[2:]) == [0, 0]
    assert most == 1


async def test_more_than_may_wait_is_refused_with_503() -> None:
    """An owner's work beyond its bound is refused with 503 at once; another owner's still finds places."""
    off_loop = OffLoop()
    go_on = threading.Event()
    wait = partial(go_on.wait, PATIENCE_S)
    tasks = [asyncio.create_task(off_loop.run("k", Effort.LARGE, wait)) for _ in range(17)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await off_loop.run("k", Effort.LARGE, wait)
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    tasks[5].cancel()
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(off_loop.run("k", Effort.LARGE, wait)))
    tasks += [asyncio.create_task(off_loop.run("other", Effort.LARGE, wait)) for _ in range(3)]
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended.pop(5), asyncio.CancelledError) and all(each is True for each in ended)


@pytest.mark.parametrize("effort", [Effort.SHORT, Effort.LARGE, Effort.GRAMMAR])
async def test_a_crowd_of_one_owner_delays_others_by_a_turn(effort: Effort) -> None:
    """However much waits: the piece that runs ends before another owner's begins, or none where there are more threads."""
    off_loop = OffLoop()
    turn, begun = threading.Semaphore(0), 0

    def slow() -> None:
        nonlocal begun
        begun += 1
        assert turn.acquire(timeout=PATIENCE_S)

    crowd = [asyncio.create_task(off_loop.run("crowd", effort, slow)) for _ in range(15)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(off_loop.run(f"{each}", effort, lambda: begun)) for each in range(3)]
    await asyncio.sleep(0)
    if effort is Effort.LARGE:
        turn.release()
    async with asyncio.timeout(PATIENCE_S):
        assert max(await asyncio.gather(*others)) <= 2
    for _ in crowd:
        turn.release()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*crowd)


#: Requests of the key with slow grammars.
CROWD = 12


@pytest.mark.parametrize("named", [True, False], ids=["named keys", "keys without names"])
async def test_slow_grammars_of_one_key_delay_no_other_key(
    make_app: MakeApp, text: ChatText, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """While two of them compile and the others wait, another key's chats are planned, and those with grammars of its own."""
    compiling, go_on = 0, threading.Event()
    known = text.grammar_check._problem

    def problem(grammar: str) -> str:
        nonlocal compiling
        if "slow" not in grammar:
            return known(grammar)
        compiling += 1
        assert go_on.wait(PATIENCE_S)
        return "slow"

    monkeypatch.setattr(text.grammar_check, "_problem", problem)
    app = make_app(api_keys=[ApiKey(key, key if named else "") for key in ("crowd", "other")])
    async with connect(app) as client:

        async def ask(key: str, **asked: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await client.post(CHATS, json=CHAT | asked, headers=headers)).status_code

        slow = [{"structured_outputs": {"regex": f"slow{named}{number}"}} for number in range(CROWD)]
        crowd = [asyncio.create_task(ask("crowd", **each)) for each in slow]
        await until(lambda: compiling == 2)
        async with asyncio.timeout(PATIENCE_S):
            assert await ask("other") == 200
            assert await ask("other", user="u" * INLINE_BYTES) == 200
            for number in range(3):
                assert await ask("other", structured_outputs={"regex": f"[ab]{{{number + 1}}}"}) == 200
        assert compiling == 2 and not any(each.done() for each in crowd)
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*crowd) == [400] * CROWD
