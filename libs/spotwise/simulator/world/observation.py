"""Reports of a simulated run: each request and each iteration once, when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.values import value
from spotwise.simulator.world.prompt_blocks import PromptBlocks


@value
class Arrival:
    """A request's arrival.

    Attributes:
        at_s: seconds from the start of the run.
        prompt_tokens: at least 1.
        output_tokens: at least 1, the first one included.
        blocks: block hashes of the prompt, where its content is known.
        priority: the lower the earlier, where the policies heed it.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: PromptBlocks | None = None
    priority: int = field(default=0, kw_only=True)


@value
class CompletedRequest:
    """A completed request.

    Attributes:
        first_token_s, finished_s: seconds from the start of the run.
        cached_tokens: tokens of its prompt that were found in the prefix cache of the worker that computed the rest of it.
        machines: machines of its prompt and its tokens, in the last attempt; `None` unless `WorldSettings.reports_machines`.
    """

    arrival: Arrival
    first_token_s: float
    finished_s: float
    cached_tokens: int = 0
    machines: tuple[str, str] | None = None

    @property
    def ttft_s(self) -> float:
        """TTFT in seconds."""
        return self.first_token_s - self.arrival.at_s

    @property
    def e2e_s(self) -> float:
        """E2E latency in seconds."""
        return self.finished_s - self.arrival.at_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens as in the paper's simulator: over all output tokens; `None` for a single token."""
        tokens = self.arrival.output_tokens
        return (self.finished_s - self.first_token_s) / tokens if tokens > 1 else None


class Observer(Protocol):
    """Receives the events of a run, in order of time."""

    def request_completed(self, request: CompletedRequest) -> None:
        """A request completed."""

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """A request failed, possibly after some tokens."""

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """A machine has run so many iterations of this shape, `seconds` long in total."""

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        """So many tokens were made at each of these seconds after their predecessors, each in its own request."""
