"""Objectives of latency, and the end of a run at its first broken one, for searches that need only the verdict.

They hold when all percentiles are below their bounds and no request failed. Without others they are the paper's nine, against a
DGX-A100 (Splitwise, table VI). TBT here is a request's mean, (E2E - TTFT) / output tokens, as in the paper's simulator; gaps
between single tokens (ITL) are measured beside it.

Of a known number of requests a fixed number may exceed a bound before its percentile does (nearest rank). About half of a
search's runs break, with ever-growing queues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spotwise.core.costs.cost_model import BatchShape, IterationCost, LinearIterationCost, TableIterationCost, pairs
from spotwise.core.percentile import nearest_rank
from spotwise.simulator.costs.published_costs import PublishedIterationCost
from spotwise.simulator.world.observation import Arrival

METRICS = ("ttft", "tbt", "e2e")
#: What is measured in seconds: a gap between tokens has no slowdown.
MEASURED = (*METRICS, "itl")
PERCENTS = (50, 90, 99)
#: Bounds of slowdowns, by metric, at each of `PERCENTS` (Splitwise, table VI).
SPLITWISE_OBJECTIVES: Mapping[str, tuple[float, float, float]] = {
    "ttft": (2.0, 3.0, 6.0),
    "tbt": (1.25, 1.5, 5.0),
    "e2e": (1.25, 1.5, 5.0),
}


@dataclass(frozen=True, slots=True)
class LatencyBound:
    """An upper bound of a metric at a percentile.

    Attributes:
        metric: one of `METRICS`, or of `MEASURED` for seconds.
        percent: one of `PERCENTS`.
        below: the bound.
        is_slowdown: it is of slowdowns; otherwise of seconds.
    """

    metric: str
    percent: int
    below: float
    is_slowdown: bool

    def __post_init__(self) -> None:
        metrics = METRICS if self.is_slowdown else MEASURED
        if self.metric not in metrics:
            raise ValueError(f"{self.metric} has no bound of this kind; choose one of {', '.join(metrics)}")
        if self.percent not in PERCENTS:
            raise ValueError(f"p{self.percent}: choose one of {', '.join(f'p{percent}' for percent in PERCENTS)}")
        if not 0.0 < self.below < math.inf:
            raise ValueError(f"{self.metric} p{self.percent}: a bound is above 0 and finite")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Bounds that must all hold.

    Attributes:
        bounds: at least one.
        alone: cost of iterations of the machine that slowdowns are against; `None`: a DGX-A100, or the first machine of a
            cluster with profiles.
    """

    bounds: tuple[LatencyBound, ...]
    alone: LinearIterationCost | TableIterationCost | None = None

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("objectives need a bound at least")

    def of(self, metric: str, *, is_slowdown: bool) -> tuple[float | None, ...]:
        """Return a metric's bounds at each of `PERCENTS`; `None` where it has none."""
        own = {
            each.percent: each.below for each in self.bounds if (each.metric, each.is_slowdown) == (metric, is_slowdown)
        }
        return tuple(own.get(percent) for percent in PERCENTS)


#: The paper's nine.
SPLITWISE_SLOS = Objectives(
    tuple(
        LatencyBound(metric, percent, below, is_slowdown=True)
        for metric, bounds in SPLITWISE_OBJECTIVES.items()
        for percent, below in zip(PERCENTS, bounds, strict=True)
    )
)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of one request; `tbt_s` is `None` with a single token."""

    ttft_s: float
    tbt_s: float | None
    e2e_s: float


class Uncontended(Protocol):
    """Computes a request's latencies on an idle machine."""

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return the request's latencies alone."""


@dataclass(frozen=True, slots=True)
class AloneOn:
    """An idle machine: a prefill iteration, then one growing sequence; the cost is linear in a decode's context."""

    cost: IterationCost

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return the request's latencies."""
        prompt, output = arrival.prompt_tokens, arrival.output_tokens
        ttft_s = self.cost.iteration_s(BatchShape(prompt, pairs(0, prompt)))
        if output == 1:
            return Latencies(ttft_s, None, ttft_s)
        # The n-th decode attends to prompt + n tokens; twice the mean context in one call, since it may be half a token.
        mean_s = 0.5 * sum(
            self.cost.iteration_s(BatchShape(decodes=1, decode_context=context))
            for context in (prompt + 1, prompt + output - 1)
        )
        decode_s = mean_s * (output - 1)
        return Latencies(ttft_s, decode_s / output, ttft_s + decode_s)


@dataclass(frozen=True, slots=True)
class PublishedAlone:
    """The published figures' reference: decode time by prompt tokens, for each token after the first."""

    cost: PublishedIterationCost

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return the request's latencies by the published tables."""
        ttft_s = self.cost.prompt(arrival.prompt_tokens)
        tbt_s = self.cost.decode(arrival.prompt_tokens)
        return Latencies(ttft_s, tbt_s, ttft_s + tbt_s * (arrival.output_tokens - 1))


class ObjectivesLostError(Exception):
    """An SLO is broken, whatever follows."""


class LostObjectives:
    """Counts the requests that may still exceed each bound; of a metric that some of the run's `requests` lack, a break is
    found late, and of gaps between tokens, whose number is not known, at the end."""

    def __init__(self, requests: int, objectives: Objectives) -> None:
        self._left: dict[tuple[str, bool], list[tuple[float, int]]] = {}
        for bound in objectives.bounds:
            if bound.metric in METRICS:
                allowed = requests - nearest_rank(requests, bound.percent)
                self._left.setdefault((bound.metric, bound.is_slowdown), []).append((bound.below, allowed))

    def count(self, metric: str, seconds: float, slowdown: float) -> None:
        """Count a request's latency; raises ObjectivesLostError if it broke an SLO."""
        for value, key in ((slowdown, (metric, True)), (seconds, (metric, False))):
            bounds = self._left.get(key)
            if bounds:
                self._left[key] = left = [(bound, n if value < bound else n - 1) for bound, n in bounds]
                if any(n < 0 for _, n in left):
                    raise ObjectivesLostError
