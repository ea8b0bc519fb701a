"""The gain of placement by expected instance lifetimes, on recorded fleets. The hazard is fitted on lives that ended before the
first request, or on another trace; all rules share requests and fleet per seed and are compared seed by seed (95 % CI)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from spotwise.core.lives.survival import Life, fit_hazard
from spotwise.studies.spotserve.placement_world import (
    NodeEvent,
    PlacementOutcome,
    PlacementRule,
    PlacementSetting,
    place_requests,
)

#: Counts that an interval may be of.
COUNTS = ("interruptions", "recomputed_tokens", "mean_latency_s")


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval of at least two independent values, by Student's t."""
        if len(values) < 2:
            raise ValueError("an interval needs two seeds at least")
        mean = float(np.mean(values))
        half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
        return cls(mean, mean - half, mean + half)


@dataclass(frozen=True, slots=True)
class PlacementFinding:
    """The placement rules compared on one fleet.

    Attributes:
        trace: its second half is served on.
        fitted_on: the trace whose lives the hazard is fitted on.
        steady: instances that are never preempted, besides those of the trace.
        outcomes: outcomes by rule, one a seed.
    """

    trace: str
    fitted_on: str
    steady: int
    outcomes: Mapping[PlacementRule, tuple[PlacementOutcome, ...]]

    def interval(self, placement: PlacementRule, of: str) -> Interval:
        """Return the mean over seeds of one of `COUNTS`."""
        return Interval.of([getattr(outcome, of) for outcome in self.outcomes[placement]])

    def spared(self, beside: PlacementRule, of: str = "interruptions") -> Interval:
        """Return the share of one of `COUNTS` that the preemption-aware rule saves against another, seed by seed."""
        ours, others = self.outcomes[PlacementRule.AWARE], self.outcomes[beside]
        return Interval.of(
            [1.0 - getattr(our, of) / max(1, getattr(other, of)) for our, other in zip(ours, others, strict=True)]
        )


def lives_until(events: Iterable[NodeEvent], until_s: float) -> list[Life]:
    """Return the instance lives as known at a time; later events are ignored."""
    came: dict[str, float] = {}
    lives: list[Life] = []
    for at_s, kind, node in events:
        if at_s > until_s:
            break
        if kind == "add":
            came[node] = at_s
        else:
            lives.append(Life(at_s - came.pop(node), ended=True))
    return lives + [Life(until_s - from_s, ended=False) for from_s in came.values()]


def study_placements(
    traces: Mapping[str, Sequence[NodeEvent]],
    setting: PlacementSetting,
    seeds: Sequence[int],
    steady: int = 4,
) -> Iterator[PlacementFinding]:
    """Yield findings for the second half of each trace: fitted on its own first half and on each other trace, where every
    instance may be preempted; and on its own first half with `steady` instances that are not.

    Args:
        traces: traces by name; events in order of time.
        seeds: at least two.
    """
    for name, events in traces.items():
        half_s = (events[0][0] + events[-1][0]) / 2
        own = f"{name}, first half"
        fits = {own: lives_until(events, half_s)}
        fits |= {other: lives_until(theirs, theirs[-1][0]) for other, theirs in traces.items() if other != name}
        for fitted_on, lives in fits.items():
            hazard = fit_hazard(lives)
            for staying in (0, steady) if fitted_on == own else (0,):
                fleet = replace(setting, steady=staying)
                outcomes = {
                    placement: tuple(place_requests(events, half_s, hazard, fleet, placement, seed) for seed in seeds)
                    for placement in PlacementRule
                }
                yield PlacementFinding(name, fitted_on, staying, outcomes)
