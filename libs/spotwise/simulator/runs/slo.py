"""Latency objectives, as slowdowns against a machine that has nothing else to do.

Law: a request's slowdown is what it took over what it would have taken alone on a DGX-A100; the objectives hold when all nine
percentiles are below their bounds and no request failed (Splitwise, table VI).

TBT in here is a request's mean, (E2E - TTFT) / output tokens, as in the paper's simulator; gaps between single tokens are
measured beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spotwise.core.cost_model import BatchShape, IterationCost, TableIterationCost, pairs
from spotwise.simulator.world.observation import Arrival

PERCENTS = (50, 90, 99)


#: What slowdowns must be below, by metric, at each of `PERCENTS` (Splitwise, table VI).
SPLITWISE_OBJECTIVES: Mapping[str, tuple[float, float, float]] = {
    "ttft": (2.0, 3.0, 6.0),
    "tbt": (1.25, 1.5, 5.0),
    "e2e": (1.25, 1.5, 5.0),
}


@dataclass(frozen=True, slots=True)
class Latencies:
    """What one request takes, seconds; `tbt_s` is `None` where there is one token."""

    ttft_s: float
    tbt_s: float | None
    e2e_s: float


class Uncontended(Protocol):
    """Knows what a request takes on a machine that has nothing else to do."""

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return them."""


@dataclass(frozen=True, slots=True)
class AloneOn:
    """A machine whose iterations cost this: the prompt in one of them, then one sequence that grows.

    Attributes:
        cost: linear in the context that decodes attend to.
    """

    cost: IterationCost

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return what the request takes there."""
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
    """The reference that the published figures are normalized with: decode time looked up by prompt tokens, once for each
    token after the first."""

    cost: TableIterationCost

    def latencies(self, arrival: Arrival) -> Latencies:
        """Return what the request takes by the published tables."""
        ttft_s = self.cost.prompt(arrival.prompt_tokens)
        tbt_s = self.cost.decode(arrival.prompt_tokens)
        return Latencies(ttft_s, tbt_s, ttft_s + tbt_s * (arrival.output_tokens - 1))
