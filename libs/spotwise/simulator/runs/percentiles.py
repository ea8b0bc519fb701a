"""Percentiles in bounded memory: exact (nearest rank) for the first values; beyond that, counts in cells with geometric bounds,
off by `RELATIVE_ERROR` at most and never outside the observed range (DDSketch: Masson, Rim, Lee, VLDB 2019, section 2)."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spotwise.core.percentile import nearest_rank

#: Relative error of a percentile, once values are counted in cells.
RELATIVE_ERROR = 0.0025
#: Different values kept before that.
EXACT_ENTRIES = 20_000

#: New values that are counted together: by many at once it costs a fraction.
_COUNTED_AT_ONCE = 4_096

_LOG_FACTOR = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_INFINITE: Final = math.inf
_LEAST = 1e-9  # smaller values, 0 among them, share a cell


class Percentiles:
    """A multiset of values of at least 0; `count` of them."""

    def __init__(self, exact_entries: int = EXACT_ENTRIES) -> None:
        self.count = 0
        self._exact_entries = exact_entries
        self._new: dict[float, int] = {}  #: added since all others were counted
        self._total = 0.0
        self._range: tuple[float, float] | None = None
        self._kept: dict[float, int] | None = {}
        self._cells: dict[int, int] = {}
        self._ranked: _Ranked | None = None  #: what is kept, or the cells, until more is counted

    def add(self, value: float, count: int = 1) -> None:
        """Add a value, `count` times; raises ValueError if it is below 0 or no number."""
        self.add_all((value,), count)

    def add_all(self, values: Sequence[float], count: int = 1) -> None:
        """Add values, each `count` times; raises as `add` does."""
        new = self._new
        for value in values:
            if not 0 <= value < _INFINITE:
                raise ValueError(f"{value} is not a finite value of at least 0")
            new[value] = new.get(value, 0) + count
        self.count += count * len(values)
        if len(new) >= _COUNTED_AT_ONCE:
            self._count_new()

    @property
    def smallest(self) -> float | None:
        """The smallest value; `None` without values."""
        self._count_new()
        return None if self._range is None else self._range[0]

    @property
    def largest(self) -> float | None:
        """The largest value; `None` without values."""
        self._count_new()
        return None if self._range is None else self._range[1]

    @property
    def mean(self) -> float | None:
        """Mean of all values."""
        self._count_new()
        return self._total / self.count if self.count else None

    def at(self, percent: float) -> float | None:
        """Return the value that `percent` percent of all values do not exceed; `None` without values."""
        self._count_new()
        if self._range is None:
            return None
        rank = nearest_rank(self.count, percent)
        if self._ranked is None:
            self._ranked = _Ranked(self._cells if self._kept is None else self._kept)
        if self._kept is not None:
            return self._ranked.at(rank)
        middle = math.exp((self._ranked.at(rank) - 0.5) * _LOG_FACTOR)
        return min(max(middle, self._range[0]), self._range[1])

    def _count_new(self) -> None:
        new, self._new = self._new, {}
        if not new:
            return
        self._ranked = None
        values, counts = _as_arrays(new)
        self._total += float((values * counts).sum())
        least, most = float(values.min()), float(values.max())
        self._range = (least, most) if self._range is None else (min(self._range[0], least), max(self._range[1], most))
        if self._kept is not None:
            for value, count in new.items():
                self._kept[value] = self._kept.get(value, 0) + count
            if len(self._kept) <= self._exact_entries:
                return
            values, counts = _as_arrays(self._kept)
            self._kept = None
        known = self._cells
        cells = np.ceil(np.log(np.maximum(values, _LEAST)) / _LOG_FACTOR).astype(int)
        first = int(cells.min())
        in_cells = np.bincount(cells - first, counts)
        for cell in np.flatnonzero(in_cells).tolist():
            known[first + cell] = known.get(first + cell, 0) + int(in_cells[cell])


def _as_arrays(counted: dict[float, int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    size = len(counted)
    return np.fromiter(counted, np.float64, size), np.fromiter(counted.values(), np.int64, size)


class _Ranked:
    """Values, or numbers of cells, in ascending order, with how many there are up to each."""

    def __init__(self, counted: dict[float, int] | dict[int, int]) -> None:
        in_order = sorted(counted.items())
        self._entries = [float(entry) for entry, _ in in_order]
        self._passed = list(itertools.accumulate([count for _, count in in_order]))

    def at(self, rank: int) -> float:
        """Return the entry of a rank, 1 that of the smallest value."""
        return self._entries[bisect_left(self._passed, rank)]
