"""Signs of life: how long a member received nothing, and a file that a process touches while its event loop goes round."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

#: A tick later than this means that the process was suspended, or its loop blocked.
LATE_TICK_S = 0.5
#: Heartbeats of its own that a member misses before it considers the broker unreachable.
MISSED_BEATS = 3


class Attention:
    """Measures by the member's own heartbeats, which the broker returns, and by late ticks; `monotonic` is in seconds."""

    def __init__(self, heartbeat_s: float, tick_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._deaf_after_s = MISSED_BEATS * heartbeat_s
        self._late_after_s = tick_s + LATE_TICK_S
        self._monotonic = monotonic
        self._received_s = self._looked_s = monotonic()

    def received_own_heartbeat(self) -> None:
        """Note that a heartbeat of this member came back."""
        self._received_s = self._monotonic()

    def away_s(self) -> float:
        """Return the seconds since the last tick in which nothing could be received; call once per tick."""
        now = self._monotonic()
        elapsed_s, self._looked_s = now - self._looked_s, now
        is_deaf = now - self._received_s > self._deaf_after_s
        return elapsed_s if is_deaf or elapsed_s > self._late_after_s else 0.0


#: Age up to which a touch shows life; a loop with much to do takes a second for an iteration.
FRESH_S = 4.0


class Pulse:
    """One process's file; the folder must exist.

    Args:
        path: the file; `None`: no supervisor looks at it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def beat(self) -> None:
        """Touch the file; what keeps it from being written costs a sign of life and nothing else."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                self._path.touch(mode=0o600)


def has_pulse(path: Path) -> bool:
    """Whether a process has touched its file lately."""
    try:
        touched_s = path.stat().st_mtime
    except OSError:
        return False
    return abs(time.time() - touched_s) < FRESH_S
