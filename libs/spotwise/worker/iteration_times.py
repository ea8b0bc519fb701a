"""How long a worker's iterations took: what a cost profile is made of.

Law: a time is that of the engine alone, from its order, or from the end of the one before it where that came later, to its end;
an iteration that failed says nothing. The newest are kept, so many that a measurement can fetch them now and then.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from spotwise.core.cost_model import BatchShape
from spotwise.mesh.grpc_control import IterationTime, RecentIterations

#: A minute of iterations as short as a few milliseconds.
_KEPT = 8192


class IterationTimes:
    """The newest iterations of one worker, numbered from 1."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[BatchShape, float]] = deque()
        self._kept: deque[IterationTime] = deque(maxlen=_KEPT)
        self._last = 0
        self._ended_s = 0.0

    def ordered(self, shape: BatchShape, now_s: float) -> None:
        """Note an order, on any clock that runs evenly."""
        self._in_flight.append((shape, now_s))

    def ended(self, now_s: float, *, failed: bool = False) -> None:
        """Note the end of the oldest iteration in flight."""
        shape, ordered_s = self._in_flight.popleft()
        began_s, self._ended_s = max(ordered_s, self._ended_s), now_s
        if not failed:
            self._last += 1
            self._kept.append(IterationTime(shape, now_s - began_s))

    def since(self, after: int) -> RecentIterations:
        """Return those behind number `after` that are still kept, oldest first."""
        first_kept = self._last - len(self._kept)
        return RecentIterations(self._last, tuple(islice(self._kept, max(0, after - first_kept), None)))
