"""Restart delays and the limit on deaths: more than `MAX_RESTARTS` within `WINDOW_S` of an essential process end the mesh."""

from __future__ import annotations

from collections import deque

MAX_RESTARTS = 5
WINDOW_S = 60.0
FIRST_DELAY_S = 0.25
MAX_DELAY_S = 60.0


class RestartLimit:
    """The recent deaths of one process."""

    def __init__(self) -> None:
        self._deaths_s: deque[float] = deque()
        self._in_a_row = 0
        self._due_s: float | None = None

    def delay_after_death(self, now_s: float) -> float:
        """Seconds until the next restart: doubles with each early death, up to `MAX_DELAY_S`; reset after `WINDOW_S` alive."""
        if self._due_s is not None and now_s - self._due_s >= WINDOW_S:
            self._in_a_row = 0
        self._deaths_s.append(now_s)
        delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._in_a_row, 32))
        self._in_a_row += 1
        self._due_s = now_s + delay_s
        return delay_s

    def too_often(self, now_s: float) -> bool:
        """Whether it died more than `MAX_RESTARTS` times within `WINDOW_S`."""
        while self._deaths_s and now_s - self._deaths_s[0] >= WINDOW_S:
            self._deaths_s.popleft()
        return len(self._deaths_s) > MAX_RESTARTS
