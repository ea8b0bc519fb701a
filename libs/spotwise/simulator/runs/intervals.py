"""Means over seeds, with 95 % confidence intervals (Student's t), and the figures of runs that differ in their seeds alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.runs.slo import PERCENTS

#: Student's t for 95 % two-sided confidence, by degrees of freedom from 1; the last one is taken for more.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean, and half of its 95 % confidence interval; `None` for a single value."""

    mean: float
    half_width: float | None


def mean_interval(values: Sequence[float]) -> MeanInterval:
    """Return the mean of one value or more, and how sure it is."""
    if len(values) < 2:
        return MeanInterval(fmean(values), None)
    t = _T95[min(len(values) - 2, len(_T95) - 1)]
    return MeanInterval(fmean(values), t * stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class SeedMeans:
    """Figures over runs of one case with several seeds, at least one run."""

    runs: tuple[RunSummary, ...]

    @property
    def holding(self) -> int:
        """Runs in which all SLOs hold."""
        return sum(run.verdict.holds for run in self.runs)

    @property
    def broken(self) -> list[str]:
        """SLOs that some runs break."""
        return list(dict.fromkeys(name for run in self.runs for name in run.verdict.broken))

    def over(self, figure: Callable[[RunSummary], float | None]) -> MeanInterval | None:
        """Return the mean of a figure; `None` where a run lacks it."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        return mean_interval(values) if len(values) == len(self.runs) else None

    def latency_s(self, metric: str, name: str) -> MeanInterval | None:
        """Return the mean of a latency in seconds: a metric's `mean`, `p50`, `p90` or `p99`."""
        return self.over(lambda run: run.latencies_s[metric].get(name))

    def slowdown(self, metric: str, percent: int) -> MeanInterval | None:
        """Return the mean of a metric's slowdown at one of `PERCENTS`; `None` for a metric that has none."""
        column = PERCENTS.index(percent)

        def own(run: RunSummary) -> float | None:
            figures = run.verdict.slowdowns.get(metric)
            return None if figures is None else figures[column][0]

        return self.over(own)
