"""A request that has not ended, and its newest attempt.

Law: an attempt's tokens count from its workers only. The scheduler says who they are; where that word was lost, the first
tokens name their worker: the attempt's first token is the prompt worker's, all later ones are the token worker's. Tokens are
missing where a later one has overtaken them, or where one of the workers has lost some and has brought this attempt none since.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotwise.core import messages as m
from spotwise.core.gateway.attempt_history import AttemptHistory
from spotwise.core.request import FinishReason, RequestState


@dataclass(slots=True)
class OpenRequest:
    """What the gateway knows of a request.

    Attributes:
        state: where it stands for its client.
        epoch, attempt_id: of the newest attempt.
        queued: a scheduler has accepted the attempt.
        announced: its client was told that workers were found.
        workers: those whose loss would be the attempt's; the prompt worker's part is done with the token worker's first token.
        senders: those whose tokens count.
        assigned: the scheduler has said who they are.
        first_index: index of the attempt's first token.
        model_digest: of the weights that `token_ids` were computed with.
        token_ids: committed: its client has them.
        early: tokens that came before the one that is next.
        gap_since_s: since when a token is missing that a later one has overtaken.
        doubted_s: workers that lost tokens since they last brought it one, and when they did.
        submitted_s, progress_s: when the attempt began, and when the last token came.
        held_s: when a scheduler or a worker last named the attempt as one that it holds.
        lost_since_s: when the first attempt was lost since the last token.
        retry_at_s: when the next attempt begins; `None` while one runs.
        history: of the attempts so far.
    """

    choice_id: str
    prompt_tokens: int
    received_s: float
    state: RequestState = RequestState.WAITING
    epoch: int = 0
    attempt_id: int = 0
    queued: bool = False
    announced: bool = False
    workers: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    assigned: bool = False
    first_index: int = 0
    model_digest: str | None = None
    token_ids: list[int] = field(default_factory=list)
    early: dict[int, m.TokenDelta] = field(default_factory=dict)
    gap_since_s: float | None = None
    doubted_s: dict[str, float] = field(default_factory=dict)
    first_token_s: float | None = None
    submitted_s: float = 0.0
    progress_s: float = 0.0
    held_s: float = 0.0
    lost_since_s: float | None = None
    retry_at_s: float | None = None
    history: AttemptHistory = field(default_factory=AttemptHistory)

    def begin_attempt(self, attempt_id: int, now: float) -> None:
        """Start the next attempt from the committed tokens; nothing of the one before counts any more."""
        self.epoch += 1
        self.attempt_id = attempt_id
        self.workers, self.senders, self.assigned, self.queued = (), (), False, False
        self.first_index = len(self.token_ids)
        if not self.token_ids:
            self.model_digest = None
        self.early.clear()
        self.doubted_s.clear()
        self.gap_since_s = None
        self.submitted_s, self.held_s, self.retry_at_s = now, now, None
        self.history.began()

    def assign(self, prompt_worker: str, token_worker: str) -> None:
        """Take the scheduler's word for who the workers are."""
        self.assigned, self.senders = True, (prompt_worker, token_worker)
        if self.workers[-1:] != (token_worker,):  # else its tokens came before this word
            self.workers = self.senders

    def counts(self, batch: m.TokenBatch, delta: m.TokenDelta) -> bool:
        """Tell whether the attempt is this sender's; one that was not named yet names itself.

        A scheduler ends attempts, and brings no tokens.
        """
        is_schedulers = batch.number is None and delta.finish_reason is FinishReason.ERROR
        if batch.worker_id not in self.senders and not is_schedulers:
            if self.assigned:
                return False
            others, sender = self.workers, (batch.worker_id,)
            is_token_worker = delta.token_index > self.first_index
            self.workers = self.senders = (*others, *sender) if is_token_worker else (*sender, *others)
        if (batch.worker_id,) == self.workers[-1:]:
            self.workers = self.workers[-1:]  # the prompt worker's part is done, its fate no matter
        return True

    def doubt(self, worker_id: str, since_s: float) -> None:
        """Note that tokens of a worker are lost, whose nobody knows; that may be here where its workers are not known."""
        if worker_id in self.workers or not self.assigned:
            self.doubted_s.setdefault(worker_id, since_s)

    def lacks_tokens(self, now: float, gap_s: float) -> bool:
        """Tell whether tokens have been missing, or may have been, for longer than `gap_s`."""
        if self.gap_since_s is not None and now - self.gap_since_s > gap_s:
            return True
        return any(
            now - since_s > gap_s
            for worker_id, since_s in self.doubted_s.items()
            if worker_id in self.workers or not self.assigned
        )

    def was_away(self, seconds: float) -> None:
        """Put off what silence would end: nobody could be heard."""
        self.submitted_s += seconds
        self.held_s += seconds
        self.doubted_s = {worker_id: since_s + seconds for worker_id, since_s in self.doubted_s.items()}
        if self.gap_since_s is not None:
            self.gap_since_s += seconds
