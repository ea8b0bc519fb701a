"""What is done to a process of a mesh, and for how long."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil

from tests.faults.bad_links import Direction, losing_packets, on_narrow_link

#: Longer than the mesh of the tests lets a process be silent.
FOREVER_S = 3600.0
_SHORT_S, _LONG_S = 3.0, 30.0
#: A slow process runs for so long, and stands still for nine times as long.
_RUNS_S = 0.01


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One kind of fault.

    Attributes:
        apply: does it to a process, and returns when it is over.
        drains_workers: a worker that it strikes has drained, and stays away.
        needs_bad_links: it is impossible where links cannot be bad.
    """

    name: str
    apply: Callable[[int], None]
    drains_workers: bool = False
    needs_bad_links: bool = False


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _end_in_order(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


def _stop_for(seconds: float) -> Callable[[int], None]:
    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return stop


def _stop_for_ever(pid: int) -> None:
    """Until its supervisor replaces it."""
    process = psutil.Process(pid)
    process.suspend()
    try:
        process.wait(timeout=FOREVER_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def _slow_for(seconds: float) -> Callable[[int], None]:
    def slow(pid: int) -> None:
        ends_s = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < ends_s:
                os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(9 * _RUNS_S)
                finally:
                    os.kill(pid, signal.SIGCONT)
                time.sleep(_RUNS_S)

    return slow


def _during(trouble: Callable[[int], AbstractContextManager[None]], seconds: float) -> Callable[[int], None]:
    """Leave a process in trouble for so long."""

    def troubled(pid: int) -> None:
        with trouble(pid):
            time.sleep(seconds)

    return troubled


def _lose(direction: Direction, percent: int, seconds: float) -> Callable[[int], None]:
    return _during(lambda pid: losing_packets(pid, direction, percent), seconds)


def _without_more(limit: int, in_use: Callable[[psutil.Process], int], seconds: float) -> Callable[[int], None]:
    """Let a process have no more of a resource than it has."""

    def limited(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess), _limited(pid, limit, in_use):
            time.sleep(seconds)

    return limited


@contextlib.contextmanager
def _limited(pid: int, limit: int, in_use: Callable[[psutil.Process], int]) -> Iterator[None]:
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (in_use(psutil.Process(pid)), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, limit, before)


DISTURBANCES = (
    Disturbance("killed", _kill),
    Disturbance("ended in order", _end_in_order, drains_workers=True),
    Disturbance("stopped for 3 s", _stop_for(_SHORT_S)),
    Disturbance("stopped for 30 s", _stop_for(_LONG_S)),
    Disturbance("stopped for ever", _stop_for_ever),
    Disturbance("slow for 5 s", _slow_for(5.0)),
    Disturbance("cut off for 5 s", _lose(Direction.BOTH, 100, 5.0), needs_bad_links=True),
    Disturbance("cut off for 20 s", _lose(Direction.BOTH, 100, 20.0), needs_bad_links=True),
    Disturbance("mute for 5 s", _lose(Direction.SENT, 100, 5.0), needs_bad_links=True),
    Disturbance("deaf for 5 s", _lose(Direction.RECEIVED, 100, 5.0), needs_bad_links=True),
    Disturbance("loses 30 % for 5 s", _lose(Direction.BOTH, 30, 5.0), needs_bad_links=True),
    Disturbance("on a narrow link for 5 s", _during(on_narrow_link, 5.0), needs_bad_links=True),
    Disturbance("no more memory for 5 s", _without_more(resource.RLIMIT_AS, lambda each: each.memory_info().vms, 5.0)),
    Disturbance("no more files for 5 s", _without_more(resource.RLIMIT_NOFILE, lambda each: each.num_fds(), 5.0)),
)
