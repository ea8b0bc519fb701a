"""A few threads that are shared fairly: owners take turns, and one alone never has all threads."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

Result = TypeVar("Result")


class FairThreads:
    """Runs functions of several owners, each owner's in order.

    Args:
        threads: at least 2; one owner has all but one of them at most, so that another owner's next function finds one.
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most_of_one = max(1, threads - 1)
        self._lock = Lock()
        #: By owner, in the order of their next turns.
        self._waiting: dict[str, deque[Callable[[], None]]] = {}
        self._running = Counter[str]()
        self._free = threads

    def waiting(self, owner: str) -> int:
        """Return how many of an owner's functions have not begun."""
        with self._lock:
            return len(self._waiting.get(owner, ()))

    def submit(self, owner: str, work: Callable[[], Result]) -> Future[Result]:
        """Run a function once it is its owner's turn, unless its future is cancelled before."""
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
            self._waiting.setdefault(owner, deque()).append(run)
            self._begin()
        return future

    def _begin(self) -> None:
        """Begin what finds a thread; the lock is held."""
        while self._free:
            owner = next((each for each in self._waiting if self._running[each] < self._most_of_one), None)
            if owner is None:
                return
            works = self._waiting.pop(owner)
            work = works.popleft()
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
            self._begin()
