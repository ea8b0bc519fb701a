"""A member's clocks: a steady one, by which roles judge how long something takes, and the wall clock, which all hosts share.

The steady one is set once, at the start: a role whose time jumped would take all members for lost, or wait for hours. Messages
and records carry absolute times by the wall clock; `journal.py` translates between both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: A wall clock that differs by less from where it was seen last was not set: NTP slews it, or it was read late.
LEAST_STEP_S = 0.25
#: Seconds for which a wall clock that was set has to stay so, before it is believed.
STEADY_S = 10.0


class Clock(Protocol):
    """A source of `now`."""

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""


class MemberClock(Clock, Protocol):
    """A member's steady clock, and what it knows of the wall clock."""

    @property
    def ahead_s(self) -> float:
        """Seconds by which the wall clock is ahead of `now`, because it was set since; 0 usually."""

    def wall(self) -> float:
        """Return Unix time in seconds, by the wall clock as it was seen last."""

    def look(self) -> float | None:
        """Look at the wall clock; return the new `ahead_s` where that has changed."""


class SystemClock:
    """The machine's clocks; `wall` and `monotonic` read them, in seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._read_wall = wall
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()
        self._ahead_s = 0.0
        self._seen: tuple[float, float] | None = None  # another difference, and since when

    @property
    def ahead_s(self) -> float:
        """Seconds by which the wall clock is ahead of `now`, because it was set since; 0 usually."""
        return self._ahead_s

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""
        return self._monotonic() + self._offset_s

    def wall(self) -> float:
        """Return Unix time in seconds, by the wall clock as it was seen last."""
        return self.now() + self._ahead_s

    def look(self) -> float | None:
        """Look at the wall clock; return the new `ahead_s` where that has changed and stays so."""
        now = self.now()
        ahead_s = self._read_wall() - now
        if abs(ahead_s - self._ahead_s) < LEAST_STEP_S:
            self._seen = None
        elif self._seen is None or abs(ahead_s - self._seen[0]) >= LEAST_STEP_S:
            self._seen = ahead_s, now
        elif now - self._seen[1] >= STEADY_S:
            self._ahead_s, self._seen = ahead_s, None
            return ahead_s
        return None
