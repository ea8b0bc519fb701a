"""Estimates the arrival rate alpha and its variation from a window of arrivals.

Law: alpha is the requests of the last 30 seconds divided by these seconds, as in SpotServe's controller.
Time before the window is full counts with the expected rate; without one, alpha is over the watched time, at least
`least_span_s`, so that a first request is no burst.
The variation is the coefficient of variation of the gaps in the window.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise

#: Gaps that a coefficient of variation needs.
LEAST_GAPS = 4


class ArrivalWindow:
    """Arrivals of the last seconds."""

    def __init__(
        self,
        window_s: float = 30.0,
        *,
        started_s: float = 0.0,
        expected_rate: float | None = None,
        least_span_s: float = 5.0,
    ) -> None:
        """Watch arrivals since `started_s`; raise `ValueError` unless 0 < `least_span_s` <= `window_s`.
        `expected_rate`: requests a second before that, `None` where unknown: then divide by at least `least_span_s`.
        """
        if not 0 < least_span_s <= window_s:
            raise ValueError(
                f"`least_span_s` must be above 0 and at most `window_s`, not {least_span_s} and {window_s}"
            )
        self._window_s = window_s
        self._started_s = started_s
        self._expected_rate = expected_rate
        self._least_span_s = least_span_s
        self._arrivals_s: list[float] = []  # sorted

    def add(self, at_s: float) -> None:
        """Count an arrival; one that is reported late counts at its own time."""
        insort(self._arrivals_s, at_s)
        self._forget(self._arrivals_s[-1])

    def merge(self, arrivals_s: Iterable[float], now_s: float) -> None:
        """Count arrivals in any order, without those that have left the window by now, or came before it was watched: the rate
        would divide them by too short a time.
        """
        self._arrivals_s += [at_s for at_s in arrivals_s if at_s >= self._started_s]
        self._arrivals_s.sort()
        self._forget(now_s)

    def rate(self, now_s: float) -> float:
        """Return alpha, requests a second."""
        self._forget(now_s)
        watched_s = min(max(now_s - self._started_s, 0.0), self._window_s)
        if self._expected_rate is not None:
            return (len(self._arrivals_s) + self._expected_rate * (self._window_s - watched_s)) / self._window_s
        return len(self._arrivals_s) / max(watched_s, self._least_span_s)

    def cv(self, now_s: float) -> float | None:
        """Return the coefficient of variation of the gaps between arrivals, `None` with fewer than `LEAST_GAPS`."""
        self._forget(now_s)
        gaps_s = [later - earlier for earlier, later in pairwise(self._arrivals_s)]
        if len(gaps_s) < LEAST_GAPS or (mean_s := math.fsum(gaps_s) / len(gaps_s)) == 0:
            return None
        return math.sqrt(math.fsum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)) / mean_s

    def _forget(self, now_s: float) -> None:
        del self._arrivals_s[: bisect_right(self._arrivals_s, now_s - self._window_s)]
