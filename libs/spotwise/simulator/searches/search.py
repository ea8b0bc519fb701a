"""Searches the highest rate at which all SLOs hold (throughput under SLOs: Splitwise, section 6.2; its published simulator has
a grid of 10 requests/s). A search yields cases and receives their summaries, so that many share the processors
(`parallel.py`). The verdict is taken as monotonic in the rate: stride away from a guess, further each time, then bisect."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.intervals import mean_interval
from spotwise.simulator.runs.run_summary import RunSummary

_Result = TypeVar("_Result")

#: Yields cases, receives their summaries in the same order, and returns its result.
Search = Generator[Sequence[Case], Sequence[RunSummary], _Result]


@dataclass(frozen=True, slots=True)
class Limit:
    """The highest rate at which a cluster keeps all SLOs.

    Attributes:
        rates: rate of each seed, requests a second; 0 where not even one step holds.
        runs: runs of the search, in the order of their rates and seeds.
    """

    rates: tuple[float, ...]
    runs: tuple[RunSummary, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.rates)

    @property
    def is_steady(self) -> bool:
        """Whether every run at a limit that holds reached a steady state."""
        return all(run.is_steady for run in self.runs_there)

    @property
    def runs_there(self) -> list[RunSummary]:
        """The runs at a seed's limit that hold."""
        return [run for run in self.runs if run.case.rate in self.rates and run.verdict.holds]

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % confidence interval of the mean (Student's t); `None` for a single seed."""
        return mean_interval(self.rates).half_width


@dataclass(frozen=True, slots=True)
class Grid:
    """Candidate rates, requests a second: multiples of a step up to the highest, and the first guess."""

    step: float = 10.0
    highest: float = 1000.0
    guess: float = 80.0

    def __post_init__(self) -> None:
        if not 0 < self.step <= self.guess <= self.highest:
            raise ValueError("a grid has 0 < step <= guess <= highest")


def highest_rate(case: Case, grid: Grid, stride: int | None = None) -> Search[tuple[float, list[RunSummary]]]:
    """Search one seed's highest rate and its runs; 0 where not even one step holds. `stride`: steps from the guess to the
    second rate, fewer where the guess is good; by default as many as the guess has."""
    runs: list[RunSummary] = []
    last = math.floor(grid.highest / grid.step)
    low, high = 0, last + 1  # holds at `low`, does not at `high`; both in steps
    step = max(1, round(grid.guess / grid.step))
    stride = step if stride is None else stride
    while high - low > 1:
        (run,) = yield [replace(case, rate=step * grid.step)]
        runs.append(run)
        if run.verdict.holds:
            low = step
        else:
            high = step
        if high > last:
            step = min(low + stride, last)
        elif low == 0:
            step = max(high - stride, high // 2)
        else:
            step = (low + high) // 2
        stride *= 2
    return low * grid.step, runs


def limit_of(case: Case, grid: Grid, seeds: Sequence[int]) -> Search[Limit]:
    """Search the highest rate for each seed; a later one begins where the first ended, and near it."""
    rates: list[float] = []
    runs: list[RunSummary] = []
    for seed in seeds:
        guess = grid.guess if not rates else max(rates[0], grid.step)
        rate, own_runs = yield from highest_rate(
            replace(case, seed=seed), replace(grid, guess=guess), stride=1 if rates else None
        )
        rates.append(rate)
        runs += own_runs
    runs.sort(key=lambda run: (run.case.rate or 0.0, run.case.seed))
    return Limit(tuple(rates), tuple(runs))


def runs_that_hold(cases: Sequence[Case]) -> Search[list[RunSummary]]:
    """Return the runs of all cases if the SLOs hold in all of them; none otherwise, after the first that breaks."""
    runs = []
    for case in cases:
        (run,) = yield [case]
        if not run.verdict.holds:
            return []
        runs.append(run)
    return runs
