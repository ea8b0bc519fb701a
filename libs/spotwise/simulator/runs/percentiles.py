"""Percentiles in bounded memory: exact (nearest rank) for the first values; beyond that, counts in cells with geometric bounds,
off by `RELATIVE_ERROR` at most and never outside the observed range (DDSketch: Masson, Rim, Lee, VLDB 2019, section 2)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from spotwise.core.percentile import nearest_rank

#: Relative error of a percentile, once values are counted in cells.
RELATIVE_ERROR = 0.0025
#: Entries kept before that.
EXACT_ENTRIES = 20_000

_LOG_FACTOR = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_LEAST = 1e-9  # smaller values, 0 among them, share a cell

_Entry = TypeVar("_Entry", float, int)


class Percentiles:
    """A multiset of values of at least 0; `smallest` and `largest` are `None` without values."""

    def __init__(self, exact_entries: int = EXACT_ENTRIES) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest: float | None = None
        self.largest: float | None = None
        self._exact_entries = exact_entries
        self._kept: list[tuple[float, int]] | None = []
        self._cells: Counter[int] = Counter()

    @property
    def mean(self) -> float | None:
        """Mean of all values."""
        return self.total / self.count if self.count else None

    def add(self, value: float, count: int = 1) -> None:
        """Add a value, `count` times; raises ValueError if it is below 0 or no number."""
        if not 0 <= value < math.inf:
            raise ValueError(f"{value} is not a finite value of at least 0")
        self.count += count
        self.total += value * count
        self.smallest = value if self.smallest is None else min(self.smallest, value)
        self.largest = value if self.largest is None else max(self.largest, value)
        if self._kept is None:
            self._cells[_cell(value)] += count
        elif len(self._kept) < self._exact_entries:
            self._kept.append((value, count))
        else:
            for kept, times in (*self._kept, (value, count)):
                self._cells[_cell(kept)] += times
            self._kept = None

    def at(self, percent: float) -> float | None:
        """Return the value that `percent` percent of all values do not exceed; `None` without values."""
        if self.smallest is None or self.largest is None:
            return None
        rank = nearest_rank(self.count, percent)
        if self._kept is not None:
            return _ranked(sorted(self._kept), rank)
        middle = math.exp((_ranked(sorted(self._cells.items()), rank) - 0.5) * _LOG_FACTOR)
        return min(max(middle, self.smallest), self.largest)


def _cell(value: float) -> int:
    return math.ceil(math.log(max(value, _LEAST)) / _LOG_FACTOR)


def _ranked(entries: Sequence[tuple[_Entry, int]], rank: int) -> _Entry:
    passed = itertools.accumulate(times for _, times in entries)
    return next(entry for (entry, _), so_far in zip(entries, passed, strict=True) if so_far >= rank)
