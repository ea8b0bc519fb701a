"""Requests of a simulated fleet, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

#: Of every request in SpotServe's paper.
INPUT_TOKENS, OUTPUT_TOKENS = 512, 128


@dataclass(frozen=True, slots=True)
class SpotArrivals:
    """Requests, by time.

    Attributes:
        times_s: arrival times, ascending.
        input_tokens, output_tokens: tokens of each request; where `sizes` differ, the tokens that configurations are
            chosen for.
        sizes: input and output tokens by request; empty where all are of one size.
    """

    name: str
    times_s: tuple[float, ...]
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    sizes: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if any(later < earlier for earlier, later in pairwise(self.times_s)):
            raise ValueError(f"{self.name}: arrivals are not in order")
        if self.sizes and len(self.sizes) != len(self.times_s):
            raise ValueError(f"{self.name}: {len(self.times_s)} requests, and sizes of {len(self.sizes)}")
        if min(self.input_tokens, self.output_tokens, *(min(size) for size in self.sizes)) < 1:
            raise ValueError(f"{self.name}: a request has at least one token in and one out")

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def rate(self) -> float:
        """Requests a second up to the last arrival; 0 without any."""
        return len(self.times_s) / self.times_s[-1] if self.times_s and self.times_s[-1] > 0 else 0.0

    @property
    def cv(self) -> float | None:
        """Standard deviation of the gaps over their mean; `None` with fewer than two gaps."""
        gaps = np.diff(self.times_s)
        return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None

    @property
    def largest_tokens(self) -> int:
        """Tokens of the largest request, input and output."""
        return max((sum(size) for size in self.sizes), default=self.input_tokens + self.output_tokens)

    def request_sizes(self) -> Sequence[tuple[int, int]]:
        """Return input and output tokens by request."""
        return self.sizes or ((self.input_tokens, self.output_tokens),) * len(self.times_s)

    def until(self, end_s: float) -> SpotArrivals:
        """Return the requests before a time."""
        early = tuple(time_s for time_s in self.times_s if time_s < end_s)
        return replace(self, times_s=early, sizes=self.sizes[: len(early)])
