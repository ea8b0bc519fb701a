"""Runs background tasks of a member, whose failure ends it, and ends tasks reliably."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.watchdog import WatchedPart

_log = structlog.get_logger(__name__)

#: After this time, tasks that are not done are cancelled again.
CANCEL_AGAIN_S = 0.1


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks repeatedly until they are done; their exceptions are dropped. Once is not enough: `asyncio.wait_for` of
    Python 3.11 (redis-py uses it) loses a cancellation that comes as its work ends, and closing gRPC channels lose one, too.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Await work to its end, however often the caller is cancelled meanwhile; then the cancellation takes effect."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    await task
    if cancelled is not None:
        raise cancelled


class BackgroundWork:
    """Tasks that run until they are done, or until the member ends.

    Args:
        fail: ends the service, with a reason.
        watched: returns a part that the watchdog looks after, by name.
    """

    def __init__(self, fail: Callable[[str], None], watched: Callable[[str], WatchedPart]) -> None:
        self._fail = fail
        self._watched = watched
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Awaitable[Any], name: str) -> None:
        """Run work."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def repeat(self, pause: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]], name: str) -> None:
        """Pause, work, and so on; errors of broker, store or the system are logged, and the next turn retries."""
        part = self._watched(name)

        async def loop() -> None:
            while True:
                await pause()
                try:
                    with part.work():
                        await work()
                except (MeshError, OSError) as error:
                    _log.warning("periodic_work_failed", work=name, error=str(error))

        def ended(task: asyncio.Task[None]) -> None:
            # A cancellation that nothing here requested: it leaked out of what the work awaited.
            if task.cancelled() and not self._is_ending:
                self._fail(f"background work was cancelled: {name}")

        task = asyncio.ensure_future(loop())
        task.add_done_callback(ended)
        self.spawn(task, name)

    def ends(self) -> None:
        """Note that tasks are cancelled from now on."""
        self._is_ending = True

    async def end(self) -> None:
        """Cancel all tasks, and wait until they are done."""
        self.ends()
        while self._tasks:  # one that ends may have started another
            await end_tasks(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task_failed", task=task.get_name(), exc_info=error)
            self._fail(f"background work failed: {task.get_name()}: {error}")
