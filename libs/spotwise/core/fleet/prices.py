"""A price that changes over time, the bill of an instance, and the price that a market reports.

Law: a price holds from its time until the next one; a bill is the integral over a stay, exact to the moment of a change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class PriceSeries:
    """A price that changes: `per_h` dollars an hour, each from its time in `times_s` on; the times ascend."""

    times_s: tuple[float, ...]
    per_h: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.per_h):
            raise ValueError("a price has a time, and each time a price")
        if any(later <= earlier for earlier, later in pairwise(self.times_s)):
            raise ValueError(f"the times of a price must ascend: {self.times_s}")
        if not all(0 <= price < math.inf for price in self.per_h):
            raise ValueError(f"prices are finite and at least 0: {self.per_h}")

    def at(self, time_s: float) -> float:
        """Return dollars an hour at a time; before the first price, that one."""
        return self.per_h[max(0, bisect_right(self.times_s, time_s) - 1)]

    def cost(self, from_s: float, to_s: float) -> float:
        """Return the dollars for one instance between two times; raises ValueError where it has no price yet."""
        if to_s <= from_s:
            return 0.0
        if from_s < self.times_s[0]:
            raise ValueError(
                f"there is no price before {self.times_s[0]:g} s, and an instance is paid from {from_s:g} s"
            )
        first, last = bisect_right(self.times_s, from_s) - 1, bisect_right(self.times_s, to_s)
        bounds_s = (from_s, *self.times_s[first + 1 : last], to_s)
        pieces = zip(pairwise(bounds_s), self.per_h[first:last], strict=True)
        return math.fsum((end_s - start_s) * price for (start_s, end_s), price in pieces) / _HOUR_S


@dataclass(frozen=True, slots=True)
class SpotPrice:
    """Dollars an hour of a spot instance in a zone, from Unix time `since_s` on."""

    type_name: str
    zone: str
    since_s: float
    per_h: float
