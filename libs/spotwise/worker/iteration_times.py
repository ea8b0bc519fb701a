"""Times a worker's iterations, for cost profiles. An iteration's time runs from its order, or from the previous one's end where
that is later, to its end; failed ones do not count.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from spotwise.core.costs.cost_model import BatchShape
from spotwise.mesh.grpc.control import IterationTime, RecentIterations

#: A minute of iterations of a few milliseconds.
_KEPT = 8192


class IterationTimes:
    """The newest iterations of one worker, numbered from 1."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[BatchShape, float]] = deque()
        self._kept: deque[IterationTime] = deque(maxlen=_KEPT)
        self._last = 0
        self._ended_s = 0.0

    def ordered(self, shape: BatchShape, now_s: float) -> None:
        """Note an order, on any monotonic clock, in seconds."""
        self._in_flight.append((shape, now_s))

    def ended(self, now_s: float, *, failed: bool = False) -> IterationTime | None:
        """Note the end of the oldest iteration in flight, and return it; `None` where it failed."""
        shape, ordered_s = self._in_flight.popleft()
        began_s, self._ended_s = max(ordered_s, self._ended_s), now_s
        if failed:
            return None
        self._last += 1
        self._kept.append(IterationTime(shape, now_s - began_s))
        return self._kept[-1]

    def dropped(self) -> None:
        """Note that the iterations in flight will not end."""
        self._in_flight.clear()

    def since(self, after: int) -> RecentIterations:
        """Return the kept iterations after number `after`, oldest first."""
        first_kept = self._last - len(self._kept)
        return RecentIterations(self._last, tuple(islice(self._kept, max(0, after - first_kept), None)))
