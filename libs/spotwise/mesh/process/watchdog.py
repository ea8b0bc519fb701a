"""Ends a process that is alive and stuck, so that its supervisor starts another one: `spotwise up`, systemd, or a container's
restart policy.

A part is stuck where it has work under way and neither begins nor ends any for the limit of that work. The event loop is a
part as well, and while it answers the process has a pulse (`pulse.py`). Only time in which the watchdog's own thread ran
counts, so that a suspended process or machine is not stuck. The process of a stuck part logs the stacks of all threads, stops
being healthy, lets parts on a live event loop say goodbye, and exits with `EXIT_STUCK`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from spotwise.mesh.process.pulse import Pulse

_log = structlog.get_logger(__name__)

#: Exit status of a process that its watchdog ended.
EXIT_STUCK = 70
#: Interval at which the watchdog looks at the parts.
LOOK_S = 0.5
#: Time that parts have to say goodbye, from the verdict to the end of the process.
GOODBYE_S = 1.5
#: Times that a part which waits for others may take longer, so that what it waits for is found first.
WAITING_PATIENCE = 3

T = TypeVar("T")


class WatchedPart:
    """A part of a process that must make progress; any thread may call it.

    Args:
        name: for the log.
        limit_s: without progress; work may bring a limit of its own.
    """

    def __init__(self, name: str, limit_s: float) -> None:
        self.name = name
        #: Whether it waits for others now.
        self.waits = False
        self._usual_s = self._limit_s = limit_s
        self._lock = threading.Lock()
        self._under_way = 0
        self._steps = 0
        self._seen_steps = 0
        self._still_s = 0.0

    def begin(self, limit_s: float | None = None) -> None:
        """Note that work begins; while several are under way, the longest limit holds."""
        wanted_s = self._usual_s if limit_s is None else limit_s
        with self._lock:
            self._limit_s = max(self._limit_s, wanted_s) if self._under_way else wanted_s
            self._under_way += 1
            self._steps += 1

    def end(self) -> None:
        """Note that work has ended; no effect where none is under way."""
        with self._lock:
            self._under_way = max(0, self._under_way - 1)
            self._steps += 1

    def drop(self) -> None:
        """Note that nothing is under way any more."""
        with self._lock:
            self._under_way = 0
            self._steps += 1

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Begin work, and end it with the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def is_stuck(self, looked_s: float) -> bool:
        """Count `looked_s` more seconds of looking; whether it has made no progress for its limit."""
        with self._lock:
            if not self._under_way or self._steps != self._seen_steps:
                self._seen_steps, self._still_s = self._steps, 0.0
                return False
            self._still_s += looked_s / WAITING_PATIENCE if self.waits else looked_s
            return self._still_s >= self._limit_s


class WatchedExecutor(ThreadPoolExecutor):
    """Threads whose calls are work of a part."""

    def __init__(self, threads: int, name: str, part: WatchedPart) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self._part = part

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor.submit`."""
        self._part.begin()
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self._part.end())
        return future


class Watchdog:
    """The watchdog of one process.

    Args:
        limit_s: limit of parts that name none, and of the event loop; `None` ends nothing.
        end: ends the process with a status, at once.
        monotonic: seconds.
        pulse_file: for the supervisor of the process (`pulse.py`).
    """

    def __init__(
        self,
        limit_s: float | None,
        end: Callable[[int], object] = os._exit,
        monotonic: Callable[[], float] = time.monotonic,
        pulse_file: Path | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._pulse = Pulse(pulse_file)
        self._end = end
        self._monotonic = monotonic
        self._parts: list[WatchedPart] = []
        self._watches: list[Callable[[], object]] = []
        self._goodbyes: list[Callable[[Sequence[WatchedPart]], object]] = []
        self._loop_part = WatchedPart("event loop", limit_s or 0.0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_is_watched = False
        self._echoed = threading.Event()
        self._closing = threading.Event()
        self._looked_s = monotonic()

    def part(self, name: str, limit_s: float | None = None) -> WatchedPart:
        """Watch a further part; `limit_s` without progress, by default the watchdog's."""
        part = WatchedPart(name, limit_s or self.limit_s or 0.0)
        self._parts.append(part)
        return part

    def forget(self, part: WatchedPart) -> None:
        """Watch a part no more; idempotent."""
        if part in self._parts:
            self._parts.remove(part)

    def ask(self, look: Callable[[], object]) -> None:
        """Call `look` on the event loop before each look of the watchdog."""
        self._watches.append(look)

    def say_goodbye_with(self, goodbye: Callable[[Sequence[WatchedPart]], object]) -> Callable[[], None]:
        """Call `goodbye` with the stuck parts, on the event loop, before the process ends; returns what undoes that."""
        self._goodbyes.append(goodbye)

        def undo() -> None:
            with contextlib.suppress(ValueError):
                self._goodbyes.remove(goodbye)

        return undo

    def watch_loop(self) -> None:
        """Watch the event loop from now on: a start may block it for long, as imports do. Idempotent."""
        self._loop_is_watched = True

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look after all parts, on a thread, until the end of the block."""
        if self.limit_s is None:
            yield
            return
        self._loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing.set()

    def look(self) -> list[WatchedPart]:
        """Return the parts that are stuck now."""
        now_s = self._monotonic()
        # A longer gap is a pause of this process or machine, in which no part could make progress either.
        looked_s, self._looked_s = min(now_s - self._looked_s, 2 * LOOK_S), now_s
        return [part for part in (self._loop_part, *self._parts) if part.is_stuck(looked_s)]

    def _watch(self) -> None:
        self._looked_s = self._monotonic()
        self._echoed.set()
        while not self._closing.wait(LOOK_S):
            self._call_loop()
            stuck = self.look()
            if stuck:
                self._end_process(stuck)
                return

    def _call_loop(self) -> None:
        """Let the event loop call back, unless it still owes an earlier call."""
        if not self._loop_is_watched or not self._echoed.is_set() or self._loop is None:
            return
        self._pulse.beat()
        self._echoed.clear()
        self._loop_part.begin()

        def echo() -> None:
            for look in self._watches:
                look()
            self._loop_part.end()
            self._echoed.set()

        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(echo)

    def _end_process(self, stuck: list[WatchedPart]) -> None:
        names = ", ".join(part.name for part in stuck)
        _log.error("stuck", parts=names, error="no progress; the process ends, to be started anew", status=EXIT_STUCK)
        with contextlib.suppress(Exception):  # a standard error that is closed, or no file
            sys.stderr.write(_stacks())
            sys.stderr.flush()
        if self._loop is not None and self._loop_part not in stuck:
            with contextlib.suppress(RuntimeError):
                for goodbye in list(self._goodbyes):
                    self._loop.call_soon_threadsafe(goodbye, stuck)
            # Even where the process begins to leave by itself: it would wait for the stuck part.
            time.sleep(GOODBYE_S)
        self._end(EXIT_STUCK)


def _stacks() -> str:
    """Return the stacks of all threads by name, however many (`faulthandler` leaves out all beyond a hundred)."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks: list[str] = []
    for ident, frame in sys._current_frames().items():
        stacks += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame)]
    return "".join(stacks)
