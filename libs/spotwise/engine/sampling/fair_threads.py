"""Threads for grammars: a few that are shared fairly among owners, and a deep stack for libraries that recurse.

Source of the places: dynamic thresholds (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
Switches", 1998).
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Of address space; memory is taken as far as the stack is used.
STACK_BYTES = 256 << 20
_starting = threading.Lock()


def leave_core() -> None:
    """Let the calling thread run on all cores of its process: the engine's, which may have started it, can keep to one."""
    os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))  # those of the process's first thread


def with_deep_stack(work: Callable[[], Result]) -> Result:
    """Return what `work` returns in a thread of its own, of which nothing remains; raises what it raises."""
    future = Future[Result]()

    def run() -> None:
        leave_core()
        try:
            result = work()
        except BaseException as error:  # the edge of a thread: its caller takes it
            future.set_exception(error)
        else:
            future.set_result(result)

    thread = threading.Thread(target=run, name="deep")
    with _starting:  # the size is that of all threads that start
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return future.result()


class FairThreads:
    """Runs functions of several owners, each owner's in order.

    Args:
        threads: one owner has all but one of them at most, so that another owner's next function finds one. With a single
            thread owners only take turns.
        name: name of the threads.
        max_waiting: places of functions that wait; see `has_room`. `None`: any number.
    """

    def __init__(self, threads: int, name: str, max_waiting: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=leave_core)
        self._most_of_one = max(1, threads - 1)
        self._max_waiting = max_waiting
        self._lock = Lock()
        #: By owner, in the order of their next turns; an owner's in theirs.
        self._waiting: dict[str, dict[Future[Any], Callable[[], None]]] = {}
        self._running = Counter[str]()
        self._free = threads

    def waiting(self, owner: str) -> int:
        """Return how many of an owner's functions have not begun."""
        with self._lock:
            return len(self._waiting.get(owner, ()))

    def has_room(self, owner: str) -> bool:
        """Return whether one more function of an owner may wait: an owner has half of all places at most, and no more than it
        leaves to others, so that the next owner finds some.
        """
        with self._lock:
            if self._max_waiting is None:
                return True
            taken = sum(map(len, self._waiting.values()))
            return len(self._waiting.get(owner, ())) < self._max_waiting - taken

    def submit(self, owner: str, work: Callable[[], Result]) -> Future[Result]:
        """Run a function once it is its owner's turn, unless its future is cancelled before, which frees its place."""
        future = Future[Result]()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:  # the edge of a thread: the future's reader takes it
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._waiting.setdefault(owner, {})[future] = run
            self._begin()
        future.add_done_callback(partial(self._withdraw, owner))
        return future

    def _withdraw(self, owner: str, future: Future[Any]) -> None:
        """Forget a function that was cancelled before its turn."""
        if not future.cancelled():
            return
        with self._lock:
            works = self._waiting.get(owner, {})
            if works.pop(future, None) is not None and not works:
                del self._waiting[owner]

    def _begin(self) -> None:
        """Begin what finds a thread; the lock is held."""
        while self._free:
            owner = next((each for each in self._waiting if self._running[each] < self._most_of_one), None)
            if owner is None:
                return
            works = self._waiting.pop(owner)
            work = works.pop(next(iter(works)))
            if works:
                self._waiting[owner] = works  # behind the others
            self._free -= 1
            self._running[owner] += 1
            self._threads.submit(self._run, owner, work)

    def _run(self, owner: str, work: Callable[[], None]) -> None:
        work()
        with self._lock:
            self._free += 1
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
            if owner in self._waiting:
                self._waiting[owner] = self._waiting.pop(owner)  # behind those that came meanwhile
            self._begin()
