"""A scheduler's pool policy (Splitwise, section 4.2); the defaults are its reference simulator's where that has any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.messages.numerics import Crossing


class DecodeQueue(StrEnum):
    """What a decoding sequence adds to the queue of a worker that is to serve a request in place."""

    REMAINING_TOKENS = "remaining_tokens"  #: its tokens still to decode, which keeps long outputs apart
    SEQUENCES = "sequences"  #: one, as in the reference simulator


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The configured policy.

    Attributes:
        max_pending_prompt_tokens: a non-empty prompt queue is over its threshold if it would become longer than this.
        max_remaining_tokens: the same of a token queue, in tokens; `None` leaves memory as the only bound.
        break_even: serve both phases on one worker where splitting costs more delay than it saves.
        repurpose_share: share of a window, above 0 and up to 1, with off-pool work before a worker changes its home pool.
        repurpose_window_s: length of a window; `None` keeps every worker in its initial pool.
        prefix_spans: spans of prompts remembered over all requests; 0 for none.
        interruption_s: seconds that an interruption counts as, its pause and recomputation among them; answers go to workers
            that are less likely to end, and queue longer for it. 0 leaves lives out of account.
        max_passes: how often requests may pass one of their priority that no worker can take, where they delay it; 0 keeps
            the queue strictly in order, as the reference simulator does.
        token_s: seconds of an answer's token, until answers have ended that show it.
        crossing: what happens to a request whose numerics class has no room (`classes.py`).
        decode_queue: how decodes count for service in place; on token workers they count by remaining tokens.
    """

    max_pending_prompt_tokens: int = 8192
    max_remaining_tokens: int | None = None
    break_even: bool = True
    repurpose_share: float = 0.8
    repurpose_window_s: float | None = 120.0
    prefix_spans: int = 32_768
    decode_queue: DecodeQueue = DecodeQueue.REMAINING_TOKENS
    interruption_s: float = 10.0
    token_s: float = 0.05
    max_passes: int = 0
    crossing: Crossing = Crossing.COUNT

    def __post_init__(self) -> None:
        if self.max_pending_prompt_tokens < 0:
            raise ValueError("max_pending_prompt_tokens must be at least 0; 0 lets no prompt wait behind another")
        if self.max_remaining_tokens is not None and self.max_remaining_tokens < 0:
            raise ValueError("max_remaining_tokens must be at least 0; None is no bound")
        if not 0.0 < self.repurpose_share <= 1.0:
            raise ValueError("repurpose_share is a share, above 0 and at most 1")
        if self.repurpose_window_s is not None and self.repurpose_window_s <= 0.0:
            raise ValueError("repurpose_window_s must be above 0; None changes no home pool")
        if self.prefix_spans < 0:
            raise ValueError("prefix_spans must be at least 0")
        if not 0.0 <= self.interruption_s < math.inf:
            raise ValueError("interruption_s must be at least 0; 0 leaves lives out of account")
        if self.max_passes < 0:
            raise ValueError("max_passes must be at least 0; 0 lets no request pass another")
        if not 0.0 < self.token_s < math.inf:
            raise ValueError("token_s must be above 0")
