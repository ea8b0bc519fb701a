"""A request's demand, and the workers that it is placed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.ranking import Need
from spotwise.core.scheduler.views import WorkerView


@dataclass(slots=True)
class RequestDemand:
    """A request's demand.

    Attributes:
        held: first tokens that may be cached, by worker id.
        numerics_class: the class that both its workers are to be of; `None` for any.
        without: excluded workers; `below_kv_tokens`: workers that hold this many tokens, or more, are excluded for its KV.
    """

    prompt_tokens: int
    max_new_tokens: int
    held: Mapping[str, int] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    below_kv_tokens: int | None = None
    numerics_class: str | None = None

    @property
    def need(self) -> Need:
        """What a worker must have for its KV, whatever its queues are."""
        return Need(
            self.prompt_tokens,
            self.max_new_tokens,
            reserves=True,
            without=self.without,
            below_kv_tokens=self.below_kv_tokens,
            numerics_class=self.numerics_class,
        )

    def uncomputed(self, worker: WorkerView) -> int:
        """Prompt tokens that the worker would have to compute: at least the last one."""
        held = self.held.get(worker.id) if self.held else None
        return self.prompt_tokens if held is None else self.prompt_tokens - min(held, self.prompt_tokens - 1)


class PlacedBy(StrEnum):
    """The rule that chose the workers."""

    HOME_POOL = "home"
    MIXED_POOL = "mixed_pool"
    CONVERSION = "conversion"
    BREAK_EVEN = "break_even"
    LEAST_DELAY = "least_delay"  #: `least_delay.py`
    ALL_OVER = "all_over"
    BAD_PAIR = "bad_pair"  #: `placement.py`


@dataclass(slots=True)
class Placement:
    """A request's workers, the same one where it is served in place.

    Attributes:
        short: the pools with no worker within its threshold.
        by_life: the token worker was chosen for its expected life, in spite of a longer queue.
    """

    prompt_worker: WorkerView
    token_worker: WorkerView
    by: PlacedBy
    short: tuple[Pool, ...] = ()
    by_life: bool = False
