"""A discrete-event queue: events run in (time, insertion) order, and only they advance the clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class EventQueue:
    """The clock and the scheduled events; `now` is simulated seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled = 0
        self._heap: list[tuple[float, int, Callable[[Any], object], Any]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self._heap

    def at(self, time_s: float, action: Callable[[Any], object], argument: Any = None) -> None:
        """Schedule `action(argument)` at `time_s`; raises ValueError for a time in the past or no number."""
        if not time_s >= self.now:
            raise ValueError(f"it is {self.now} s already, nothing can happen at {time_s} s")
        self._scheduled += 1
        heappush(self._heap, (time_s, self._scheduled, action, argument))

    def run(self, until_s: float = inf) -> None:
        """Run until no event is left, or none up to `until_s`; the clock then is there, and later events stay scheduled."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, action, argument = heappop(heap)
            action(argument)
        if heap:
            self.now = until_s
