"""What a simulated run reports as it happens: each request and each iteration once, when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from spotwise.core.cost_model import BatchShape


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes.

    Attributes:
        at_s: when, seconds from the start of the run.
        prompt_tokens: of its prompt, at least 1.
        output_tokens: of its answer, the first one included, at least 1.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A request that was answered to its end.

    Attributes:
        arrival: as it came.
        first_token_s, finished_s: when its first and its last token were there, seconds from the start of the run.
    """

    arrival: Arrival
    first_token_s: float
    finished_s: float

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token."""
        return self.first_token_s - self.arrival.at_s

    @property
    def e2e_s(self) -> float:
        """From its arrival to its last token."""
        return self.finished_s - self.arrival.at_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time between tokens as the paper's simulator has it: over all output tokens; `None` for a single token."""
        tokens = self.arrival.output_tokens
        return (self.finished_s - self.first_token_s) / tokens if tokens > 1 else None


class Observer(Protocol):
    """Receives the events of a run, in order of time."""

    def request_completed(self, request: CompletedRequest) -> None:
        """A request was answered."""

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """A request got no answer, or not all of it."""

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """A machine has run so many iterations of this shape, `seconds` long all together."""

    def tokens_spaced(self, gap_s: float, tokens: int = 1) -> None:
        """So many tokens came `gap_s` after the one before them, each in its own request."""
