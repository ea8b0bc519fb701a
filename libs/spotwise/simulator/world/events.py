"""A discrete-event queue: events run in (time, insertion) order, and only they advance the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

#: Time, number, and what to do with what.
_Event = tuple[float, int, Callable[[Any], object], Any]


class EventQueue:
    """The clock and the scheduled events; `now` is simulated seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled = 0
        self._heap: list[_Event] = []
        self._in_turn: deque[_Event] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self._heap and not self._in_turn

    def at(self, time_s: float, action: Callable[[Any], object], argument: Any = None) -> None:
        """Schedule `action(argument)` at `time_s`; raises ValueError for a time in the past or no number."""
        if not time_s >= self.now:
            raise ValueError(f"it is {self.now} s already, nothing can happen at {time_s} s")
        self._scheduled += 1
        heappush(self._heap, (time_s, self._scheduled, action, argument))

    def in_turn(self, time_s: float, action: Callable[[Any], object], argument: Any) -> None:
        """Schedule as `at` does, for less where no event that was scheduled in turn comes later."""
        if not time_s >= (self._in_turn[-1][0] if self._in_turn else self.now):
            self.at(time_s, action, argument)
            return
        self._scheduled += 1
        self._in_turn.append((time_s, self._scheduled, action, argument))

    def run(self, until_s: float = inf) -> None:
        """Run until no event is left, or none up to `until_s`; the clock then is there, and later events stay scheduled."""
        heap, in_turn = self._heap, self._in_turn
        while heap or in_turn:
            is_turn = not heap or (bool(in_turn) and in_turn[0] < heap[0])
            if (in_turn[0] if is_turn else heap[0])[0] > until_s:
                self.now = until_s
                return
            self.now, _, action, argument = in_turn.popleft() if is_turn else heappop(heap)
            action(argument)
