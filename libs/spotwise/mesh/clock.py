"""Time, as the roles see it: Unix seconds that never go back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of `now`."""

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""


class SystemClock:
    """The machine's monotonic clock, set once to the wall clock: deadlines travel as absolute times and still never jump."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return Unix time in seconds, monotonic within this process."""
        return time.monotonic() + self._offset_s
