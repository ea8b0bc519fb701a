"""When a pool is full, when two workers are one too many, and when a worker is better off in another pool.

Law: choices only, made once at the scheduler's start. What they mean is decided in one place each: thresholds and the
break-even in `placement.py`, home_pools in `repurposing.py`, the memory of prefixes in `prefix_memory.py`.

Source: Splitwise, section 4.2; the figures are those of its reference simulator where it has any.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DecodeQueue(StrEnum):
    """What a sequence that decodes adds to the queue of a worker that is to serve a request in place."""

    REMAINING_TOKENS = "remaining_tokens"  #: all that it may still bring: long answers are kept apart
    #: One, as to each iteration: the shortest queue is that of prompts (the reference simulator).
    SEQUENCES = "sequences"

    @classmethod
    def _missing_(cls, value: object) -> DecodeQueue | None:
        """Accept the value's former name."""
        return cls.REMAINING_TOKENS if value == "owed_tokens" else None


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What a scheduler was told of pools.

    Attributes:
        max_pending_prompt_tokens: a prompt queue in which somebody waits is over its threshold if it would be longer than this.
        max_owed_tokens: a token queue that is not empty is over its threshold if it would be longer than this; `None` for
            memory as the only bound.
        break_even: both phases on one machine where splitting costs more delay than it saves.
        repurpose_share: share of a window for which a worker must have worked for the other pool to be given to it.
        repurpose_window_s: length of a window; `None` keeps every worker at the home that it was started with.
        prefix_spans: spans of prompts remembered, of all requests together; 0 for no memory.
        decode_queue: how decodes count where one worker serves both phases; on token workers they count by tokens owed.
    """

    max_pending_prompt_tokens: int = 8192
    max_owed_tokens: int | None = None
    break_even: bool = True
    repurpose_share: float = 0.8
    repurpose_window_s: float | None = 120.0
    prefix_spans: int = 32_768
    decode_queue: DecodeQueue = DecodeQueue.REMAINING_TOKENS

    def __post_init__(self) -> None:
        if self.max_pending_prompt_tokens < 0:
            raise ValueError("max_pending_prompt_tokens must be at least 0; 0 lets no prompt wait behind another")
        if self.max_owed_tokens is not None and self.max_owed_tokens < 0:
            raise ValueError("max_owed_tokens must be at least 0; None is no bound")
        if not 0.0 < self.repurpose_share <= 1.0:
            raise ValueError("repurpose_share is a share, above 0 and at most 1")
        if self.repurpose_window_s is not None and self.repurpose_window_s <= 0.0:
            raise ValueError("repurpose_window_s must be above 0; None changes no home")
        if self.prefix_spans < 0:
            raise ValueError("prefix_spans must be at least 0")
