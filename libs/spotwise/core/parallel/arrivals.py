"""How fast requests come: alpha, and how unevenly.

Law: alpha is the number of requests of the last 30 seconds by these seconds, as SpotServe's controller estimates it. Before so
many have been watched, what has not been seen counts with the rate that was expected; where none was, alpha is over the time
watched, which is taken for `least_span_s` at least, so that the first request alone is no flood. How unevenly they come is the
coefficient of variation of the gaps between requests in the window.

Invariants: an empty window that was fully watched gives 0; requests older than the window count for nothing; the answer depends
on the requests of the window and on the time alone.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

#: Gaps that a coefficient of variation needs; fewer say nothing.
LEAST_GAPS = 4


class ArrivalWindow:
    """Requests of the last seconds."""

    def __init__(
        self,
        window_s: float = 30.0,
        *,
        started_s: float = 0.0,
        expected_rate: float | None = None,
        least_span_s: float = 5.0,
    ) -> None:
        """Begin to watch.

        Args:
            window_s: how far back requests count.
            started_s: since when requests are watched.
            expected_rate: requests a second for what has not been watched yet; `None`: nobody knows.
            least_span_s: with nothing expected, the time watched is taken for so much at least.

        Raises:
            ValueError: a window without length.
        """
        if not 0 < least_span_s <= window_s:
            raise ValueError(
                f"`least_span_s` must be above 0 and at most `window_s`, not {least_span_s} and {window_s}"
            )
        self._window_s = window_s
        self._started_s = started_s
        self._expected_rate = expected_rate
        self._least_span_s = least_span_s
        self._arrivals_s: deque[float] = deque()

    def add(self, at_s: float) -> None:
        """Count a request that came at a time; one that is late in its turn counts as the latest so far."""
        if self._arrivals_s:
            at_s = max(at_s, self._arrivals_s[-1])
        self._arrivals_s.append(at_s)
        self._forget(at_s)

    def rate(self, now_s: float) -> float:
        """Return requests a second: alpha."""
        self._forget(now_s)
        watched_s = min(max(now_s - self._started_s, 0.0), self._window_s)
        if self._expected_rate is not None:
            return (len(self._arrivals_s) + self._expected_rate * (self._window_s - watched_s)) / self._window_s
        return len(self._arrivals_s) / max(watched_s, self._least_span_s)

    def cv(self, now_s: float) -> float | None:
        """Return the coefficient of variation of the gaps between requests, `None` with too few to say."""
        self._forget(now_s)
        gaps_s = [later - earlier for earlier, later in pairwise(self._arrivals_s)]
        if len(gaps_s) < LEAST_GAPS or (mean_s := math.fsum(gaps_s) / len(gaps_s)) == 0:
            return None
        return math.sqrt(math.fsum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)) / mean_s

    def _forget(self, now_s: float) -> None:
        while self._arrivals_s and self._arrivals_s[0] <= now_s - self._window_s:
            self._arrivals_s.popleft()
