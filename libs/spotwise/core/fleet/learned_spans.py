"""How long something lasts, learned from how long it has lasted before.

Law: the expectation is the mean of the spans that have ended, of which older ones count less, or the age of the present one
where that is more: what has lasted is expected to last as long again, and a burst of short spans is forgotten in time.
"""

from __future__ import annotations

#: Weight of the newest span.
_NEWEST = 0.25


class LearnedSpan:
    """Spans that follow one another, from the first end on."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._mean_s: float | None = None

    def ended(self, now: float) -> None:
        """Note that a span ends, and the next one begins; at one time once."""
        if self._began_s is not None:
            span_s = now - self._began_s
            if span_s <= 0:
                return
            self._mean_s = span_s if self._mean_s is None else self._mean_s + _NEWEST * (span_s - self._mean_s)
        self._began_s = now

    def expected_s(self, now: float) -> float:
        """Return the seconds that the present span is expected to last from now on; 0 before the first end."""
        age_s = 0.0 if self._began_s is None else now - self._began_s
        return max(age_s, self._mean_s or 0.0)
