"""How long a gateway keeps requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepingLimits:
    """`process`: this one, `id/incarnation`; `resume_s`: how long a resumable request goes on without its client;
    `answer_kept_s`: how long its answer is kept; `store_timeout_s`: wait for the store.
    """

    process: str
    resume_s: float = 30.0
    answer_kept_s: float = 600.0
    store_timeout_s: float = 5.0
