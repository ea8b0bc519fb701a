"""A request between its arrival and its end, as its gateway knows it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from spotwise.core.requests.prefixes import prefix_spans
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.simulator.world.observation import Arrival
from spotwise.simulator.world.prompt_blocks import NO_BLOCKS
from spotwise.simulator.world.settings import WorldSettings
from spotwise.simulator.world.token_times import TOKEN_ID, Progress

_FIRST_EPOCH = 1
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class LiveRequest:
    """A live request.

    Attributes:
        record: record of its current attempt.
        later_prompts: submitted after this one, the whole prompt last; empty where this is the whole one.
        workers: prompt worker and token worker of its current attempt, once assigned.
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


def first_record(
    arrival: Arrival, number: int, gateway_id: str, settings: WorldSettings, prompt_tokens: int, output_tokens: int
) -> RequestRecord:
    """Return the record of a request's first attempt, whose prompt has its content where workers have prefix caches."""
    blocks = (arrival.blocks or NO_BLOCKS) if settings.policy.prefix_caching else None
    return RequestRecord(
        str(number),
        _FIRST_EPOCH,
        gateway_id,
        number,
        settings.model.name,
        equal_tokens(prompt_tokens) if blocks is None else blocks.token_ids(prompt_tokens, number),
        (),
        _GREEDY,
        StopCriteria(max_new_tokens=output_tokens),
        arrival.at_s,
        arrival.priority,
    )


def spans_of(record: RequestRecord, settings: WorldSettings) -> tuple[int, ...]:
    """Name a prompt's prefixes, as a gateway does, where workers may have them."""
    if not (settings.policy.prefix_caching and settings.pools.prefix_spans):
        return ()
    return prefix_spans(record.model, (*record.prompt_token_ids, *record.output_token_ids))
