"""When a process that died is started again.

Law: the first deaths are mended almost at once, later ones ever more slowly; a process that dies more than five times within a
minute is not going to live.
"""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.25


class RestartLimit:
    """The recent deaths of one process."""

    def __init__(self) -> None:
        self._deaths_s: deque[float] = deque()

    def delay_after_death(self, now_s: float) -> float | None:
        """Seconds to wait before it is started again, doubling with each recent death; None when it died too often."""
        while self._deaths_s and now_s - self._deaths_s[0] >= WINDOW_S:
            self._deaths_s.popleft()
        if len(self._deaths_s) == MAX_RESTARTS:
            return None
        delay_s = FIRST_DELAY_S * 2.0 ** len(self._deaths_s)
        self._deaths_s.append(now_s)
        return delay_s
