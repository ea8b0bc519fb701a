"""Fits a link's latency and bandwidth to observed transfers. Least squares of seconds over bytes, with exponentially decaying
weights, so that the fit follows a link that changes. Where all transfers are of one size the line goes through the origin;
where larger ones take no longer it is flat.
"""

from __future__ import annotations

from spotwise.core.costs.cost_model import FLAT_BYTES_PER_S, LinkCost

#: A transfer's weight relative to the next one's: about twenty count.
_FADING = 0.9
#: Sizes that vary by less than this share of their mean are one size.
_ONE_SIZE = 0.05


class LinkFit:
    """A weighted linear fit."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._bytes = 0.0
        self._seconds = 0.0
        self._bytes_squared = 0.0
        self._product = 0.0

    def saw(self, num_bytes: int, seconds: float) -> None:
        """Learn from a transfer."""
        if num_bytes <= 0 or seconds <= 0.0:
            return
        self._weight = _FADING * self._weight + 1.0
        self._bytes = _FADING * self._bytes + num_bytes
        self._seconds = _FADING * self._seconds + seconds
        self._bytes_squared = _FADING * self._bytes_squared + num_bytes * num_bytes
        self._product = _FADING * self._product + num_bytes * seconds

    @property
    def cost(self) -> LinkCost | None:
        """The fitted line; `None` before the first transfer."""
        if not self._weight:
            return None
        mean_bytes, mean_s = self._bytes / self._weight, self._seconds / self._weight
        variance = self._bytes_squared / self._weight - mean_bytes * mean_bytes
        through_origin = LinkCost(0.0, mean_bytes / mean_s)
        if variance <= (_ONE_SIZE * mean_bytes) ** 2:
            return through_origin
        slope = (self._product / self._weight - mean_bytes * mean_s) / variance
        if slope <= 0.0:
            return LinkCost(mean_s, FLAT_BYTES_PER_S)
        latency_s = mean_s - slope * mean_bytes
        return LinkCost(latency_s, 1.0 / slope) if latency_s >= 0.0 else through_origin
