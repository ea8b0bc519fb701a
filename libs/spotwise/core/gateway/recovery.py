"""Limits of a request's recovery: the outcomes of attempts, and when the request is given up.

Law: an attempt makes progress once it has brought `PROGRESS_TOKENS` tokens (each attempt repeats the prompt phase's first one).
Without progress in between, `MAX_FRUITLESS` attempts that workers gave back for a failure end the request.
Likewise `MAX_FELLED` attempts that ended a worker or were given back because the engine failed; a worker that had a notice,
left in order, returns as the same incarnation, or did not answer the scheduler was not felled.
From `SUSPECT_FELLED` on a request is a suspect; a gateway tries one suspect at a time.
What workers name as the reason of a failure is avoided later; attempts of a request that makes progress are not bounded.

Source: `docs/adr/0024-requests-that-crash-workers.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotwise.core.messages.mesh import Suspects


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Limits of a request's recovery, in seconds.

    Attributes:
        recovery_s: a lost attempt is followed by others until this long after the first loss since the last token, not counting
            time in which another one was held.
        retry_pause_s: between an attempt that was lost and the next.
        stall_s: an attempt without tokens for so long is lost, although it is held: a bug's last net, since watchdogs find what
            is stuck, and requests of a full mesh wait for minutes.
        scheduler_timeout_s: silence of a lost scheduler: a slow one keeps its queue, and a restarted one announces itself.
        submit_s: a request that no scheduler has accepted yet is submitted again until this long after it was received: of
            several schedulers a standby takes over, and a single one is started again.
        unheld_s: an attempt that no scheduler and no worker has named as held for so long is lost; `None` where they name none.
        gap_s: a token that others have overtaken, or a batch that its worker has counted, is lost after this long.
    """

    recovery_s: float = 30.0
    retry_pause_s: float = 0.3
    stall_s: float = 600.0
    member_timeout_s: float = 2.0
    scheduler_timeout_s: float = 10.0
    submit_s: float = 0.0
    unheld_s: float | None = None
    gap_s: float = 1.0


#: Tokens of one attempt that are progress.
PROGRESS_TOKENS = 8
#: Attempts in a row that workers gave back, before the request is given up.
MAX_FRUITLESS = 5
#: Workers in a row that ended or failed with the request, before it is given up.
MAX_FELLED = 3
#: After so many it is tried only while no other suspect is.
SUSPECT_FELLED = 2
#: What is avoided at most; of more, the latest.
MAX_AVOIDED = 8


@dataclass(slots=True)
class AttemptHistory:
    """A request's attempts since its last progress; `avoid`: what failed, each once, the latest last."""

    avoid: tuple[Suspects, ...] = ()
    _tokens: int = 0
    _fruitless: int = 0
    _felled: list[tuple[str, int | None]] = field(default_factory=list)

    @property
    def is_suspect(self) -> bool:
        """Whether the request may be what ends its workers."""
        return len(self._felled) >= SUSPECT_FELLED

    @property
    def has_felled_too_many(self) -> bool:
        """Whether the request is given to no further worker."""
        return len(self._felled) >= MAX_FELLED

    @property
    def is_fruitless(self) -> bool:
        """Whether no choice of workers seems to serve the request."""
        return self._fruitless >= MAX_FRUITLESS

    def began(self) -> None:
        """Note a new attempt."""
        self._tokens = 0

    def brought(self, tokens: int) -> None:
        """Count tokens of this attempt."""
        self._tokens += tokens
        if self._tokens >= PROGRESS_TOKENS and (self._fruitless or self._felled):
            self._fruitless = 0
            self._felled.clear()

    def given_back(self, suspects: Suspects) -> None:
        """Note that a worker gave the attempt back, and what failed."""
        others = [known for known in self.avoid if known != suspects]
        self.avoid = (*others, suspects)[-MAX_AVOIDED:]
        self._fruitless += 1
        if len(suspects) == 1 and (suspects[0], None) not in self._felled:  # once more on the same proves nothing more
            self._felled.append((suspects[0], None))

    def felled(self, worker_id: str, incarnation: int) -> None:
        """Note that a worker ended without notice during the attempt."""
        self._felled.append((worker_id, incarnation))

    def has_returned(self, worker_id: str, incarnation: int) -> None:
        """Clear a worker that was only silent."""
        if self._felled:
            self._felled = [each for each in self._felled if each != (worker_id, incarnation)]
