"""Iteration costs as the published simulator has them (Patel et al., splitwise-sim at 8f99e7d, its performance model).

Medians of a profile by prompt tokens are joined by lines, and the outer lines extend: a table falls where measurements fall.
Decodes read the table at their number, so they take about as long in any batch; prompts and decodes in one iteration take
1.1 times the prompt time of all tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from spotwise.core.costs.cost_model import BatchShape
from spotwise.simulator.costs.profile_fit import LONGEST_TRUE_OUTPUT, ProfileError, ProfileRow

#: The published simulator's rule for prompts and decodes in one iteration.
PUBLISHED_MIXED_FACTOR = 1.1
#: Prompt tokens of each request in measured batches of several.
_BATCH_LINE_PROMPT = 512


@dataclass(frozen=True, slots=True)
class InterpolatedTable:
    """Seconds at two or more ascending arguments, joined by lines that may fall; the outer ones extrapolate."""

    at: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.at) != len(self.seconds) or len(self.at) < 2 or list(self.at) != sorted(set(self.at)):
            raise ValueError(f"a table needs seconds at two ascending arguments at least: {self.at}, {self.seconds}")
        if min(self.seconds) <= 0:
            raise ValueError(f"a table's seconds must be positive: {self.seconds}")

    def __call__(self, argument: float) -> float:
        """Return the seconds at `argument`, at least 0."""
        right = min(max(bisect_right(self.at, argument), 1), len(self.at) - 1)
        x0, x1 = self.at[right - 1], self.at[right]
        y0, y1 = self.seconds[right - 1], self.seconds[right]
        return max(0.0, y0 + (y1 - y0) * (argument - x0) / (x1 - x0))

    def slower(self, factor: float) -> InterpolatedTable:
        """Return the table with `factor` times the seconds."""
        return InterpolatedTable(self.at, tuple(factor * seconds for seconds in self.seconds))


@dataclass(frozen=True, slots=True)
class PublishedIterationCost:
    """Seconds of iterations; `prompt` by tokens, `decode` by sequences, both in one iteration by `mixed_factor`."""

    prompt: InterpolatedTable
    decode: InterpolatedTable
    mixed_factor: float = PUBLISHED_MIXED_FACTOR

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration."""
        if not shape.prompt_tokens:
            return self.decode(shape.decodes) if shape.decodes else 0.0
        seconds = self.prompt(shape.prompt_tokens + shape.decodes)
        return self.mixed_factor * seconds if shape.decodes else seconds

    def decodes_s(self, decodes: int) -> tuple[float, float]:
        """Return the seconds of an iteration of decodes alone; context costs nothing."""
        return self.decode(decodes), 0.0

    def with_slower_prompts(self, factor: float) -> PublishedIterationCost:
        """Return costs under a power cap."""
        return replace(self, prompt=self.prompt.slower(factor))


def fit_published(rows: Sequence[ProfileRow]) -> PublishedIterationCost:
    """Fit all rows of one model on one machine as the published simulator does; raises ProfileError if there are too few."""
    return PublishedIterationCost(
        _medians((row.prompt_tokens, row.prompt_s) for row in rows),
        _medians((row.prompt_tokens, row.token_s) for row in rows),
    )


def fit_published_by_batch(rows: Sequence[ProfileRow]) -> PublishedIterationCost:
    """Fit as the published simulator does, but time decodes by measured batch size; raises ProfileError if rows are too few."""
    batches = (
        (row.batch_size, row.token_s)
        for row in rows
        if row.prompt_size == _BATCH_LINE_PROMPT and row.token_size <= LONGEST_TRUE_OUTPUT
    )
    return replace(fit_published(rows), decode=_medians(batches))


def _medians(measured: Iterable[tuple[int, float]]) -> InterpolatedTable:
    by_size: dict[int, list[float]] = {}
    for size, seconds in measured:
        by_size.setdefault(size, []).append(seconds)
    if len(by_size) < 2:
        raise ProfileError("a table needs measurements at two sizes at least")
    sizes = sorted(by_size)
    return InterpolatedTable(tuple(map(float, sizes)), tuple(median(by_size[size]) for size in sizes))
