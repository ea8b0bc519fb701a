"""Nearest-rank percentiles, for benchmarks and simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_rank(count: int, percent: float) -> int:
    """Rank from 1 of the smallest of `count` ordered values that `percent` percent of them do not exceed."""
    return max(1, math.ceil(count * percent / 100))


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: one of the values; raises `ValueError` where there are none."""
    if not values:
        raise ValueError("no values, no percentile")
    return sorted(values)[nearest_rank(len(values), percent) - 1]
