"""The roles' clock: monotonic Unix seconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of `now`."""

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""


class SystemClock:
    """The machine's monotonic clock, set once to the wall clock: messages carry deadlines as absolute times."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""
        return time.monotonic() + self._offset_s
