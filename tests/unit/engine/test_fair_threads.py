"""Threads that owners share: they take turns, and none has all."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from spotwise.engine.sampling.fair_threads import FairThreads

WAIT_S = 30


def test_one_owner_never_has_all_threads() -> None:
    """However much it brought before."""
    threads, hold = FairThreads(2, "t"), threading.Event()
    crowd = [threads.submit("crowd", lambda: hold.wait(WAIT_S)) for _ in range(5)]
    assert threads.submit("other", lambda: "done").result(WAIT_S) == "done"
    assert not any(each.done() for each in crowd)
    hold.set()
    assert [each.result(WAIT_S) for each in crowd] == [True] * 5


def test_owners_take_turns() -> None:
    threads, hold, order = FairThreads(2, "t"), threading.Event(), list[str]()
    threads.submit("x", lambda: hold.wait(WAIT_S))
    first = threads.submit("y", lambda: hold.wait(WAIT_S))
    later = [threads.submit(owner, lambda owner=owner: order.append(owner)) for owner in ("a", "a", "a", "b", "b", "c")]  # type: ignore[misc]
    hold.set()
    first.result(WAIT_S)
    for each in later:
        each.result(WAIT_S)
    assert order.index("b") < 3 and order.index("c") < 4


def test_an_error_is_its_futures() -> None:
    """The thread goes on; what is cancelled before its turn does not run."""
    threads, hold = FairThreads(2, "t"), threading.Event()
    held = threads.submit("a", lambda: hold.wait(WAIT_S))
    cancelled, failing = threads.submit("a", lambda: 1 / 0), threads.submit("b", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(WAIT_S)
    assert threads.waiting("a") == 1 and cancelled.cancel()
    hold.set()
    assert held.result(WAIT_S) and threads.submit("a", lambda: 2).result(WAIT_S) == 2


def test_an_owner_leaves_places_to_others() -> None:
    """Half of all places where it is alone; what is cancelled frees its own at once, and keeps nothing."""
    threads, hold = FairThreads(2, "t", max_waiting=8), threading.Event()

    def fill(owner: str) -> list[Future[bool]]:
        futures = []
        while threads.has_room(owner):
            futures.append(threads.submit(owner, lambda: hold.wait(WAIT_S)))
        return futures

    crowd = fill("crowd")
    assert (len(crowd), threads.waiting("crowd")) == (5, 4)
    assert len(fill("other")) == 3 and threads.waiting("other") == 2
    assert len(fill("third")) == 1 and not threads.has_room("crowd")
    for each in crowd[1:]:
        assert each.cancel()
    assert threads.waiting("crowd") == 0 and threads.has_room("crowd")
    hold.set()
