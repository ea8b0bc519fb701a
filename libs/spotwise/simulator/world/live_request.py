"""A request between its arrival and its end, as its gateway knows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from spotwise.core.record import RequestRecord
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.token_times import TOKEN_ID, Progress


@dataclass(slots=True)
class LiveRequest:
    """A live request.

    Attributes:
        record: of its current attempt.
        later_prompts: submitted after this one, the whole prompt last; empty where this is the whole one.
        workers: of its current attempt, prompt worker and token worker, once assigned.
    """

    arrival: Arrival
    record: RequestRecord
    progress: Progress
    output_tokens: int
    later_prompts: tuple[int, ...]
    first_token_s: float | None = None
    delivered: int = 0  #: tokens, those included that were only counted
    workers: tuple[str, str] | None = None
    cached_tokens: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether all its tokens are made; the last may be in transit."""
        return self.progress.output_tokens >= self.output_tokens


@lru_cache(maxsize=16_384)
def equal_tokens(tokens: int) -> tuple[int, ...]:
    """Return so many tokens without content. One tuple serves all of a length, because hundreds of thousands may be live at
    once."""
    return (TOKEN_ID,) * tokens
