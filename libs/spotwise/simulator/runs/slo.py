"""SLOs as slowdowns against a request alone on a DGX-A100: they hold when all nine percentiles are below their bounds and no
request failed (Splitwise, table VI). TBT here is a request's mean, (E2E - TTFT) / output tokens, as in the paper's
simulator; gaps between single tokens are measured beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spotwise.core.cost_model import BatchShape, IterationCost, pairs
from spotwise.simulator.costs.published_costs import PublishedIterationCost
from spotwise.simulator.world.observation import Arrival

PERCENTS = (50, 90, 99)
#: Bounds of slowdowns, by metric, at each of `PERCENTS` (Splitwise, table VI).
SPLITWISE_OBJECTIVES: Mapping[str, tuple[float, float, float]] = {
    "ttft": (2.0, 3.0, 6.0),
    "tbt": (1.25, 1.5, 5.0),
    "e2e": (1.25, 1.5, 5.0),
}


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
