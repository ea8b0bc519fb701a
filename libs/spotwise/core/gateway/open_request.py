"""A request that has not ended, and its newest attempt.

Law: an attempt's tokens count from its workers only. The scheduler names them; where that message was lost, the first tokens
do: the attempt's first token is the prompt worker's, all later ones are the token worker's.
An attempt that moves has the workers of its latest move; tokens of a worker that no message has named yet wait for it.
Tokens are missing where a later one has overtaken them, or where a worker has lost batches and sent this attempt none since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from spotwise.core.gateway.recovery import AttemptHistory
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import CrossingKind, is_crossing, with_class
from spotwise.core.requests.request import FinishReason, RequestEvent, RequestState, advance
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.core.transitions import follow


class AttemptState(StrEnum):
    """Where a request's newest attempt is, as its gateway knows it.

    Law: an attempt is under way until it is lost, rejected or parked; then another begins, from the committed tokens. Messages
    of an attempt that is over come late and change nothing; only a rejection still tells that no member has anything of it.
    """

    SUBMITTED = "submitted"  #: on its way to a scheduler, or held there without a word
    QUEUED = "queued"  #: a scheduler has accepted it; its workers are not known
    PLACED = "placed"  #: its workers are known: a scheduler named them, or they sent tokens
    LOST = "lost"  #: over; the next one begins at a time
    REJECTED = "rejected"  #: over, and no scheduler and no worker has anything of it; the next one begins at a time
    PARKED = "parked"  #: over; none begins until the client reads


class AttemptEvent(StrEnum):
    """What happened to an attempt."""

    BEGUN = "begun"
    ACCEPTED = "accepted"
    PLACED = "placed"
    LOST = "lost"
    REJECTED = "rejected"
    PARKED = "parked"
    UNPARKED = "unparked"


_S, _E = AttemptState, AttemptEvent
_ENDINGS = {_E.BEGUN: _S.SUBMITTED, _E.LOST: _S.LOST, _E.REJECTED: _S.REJECTED, _E.PARKED: _S.PARKED}
_OVER = {_E.BEGUN: _S.SUBMITTED, _E.REJECTED: _S.REJECTED, _E.PARKED: _S.PARKED}
ATTEMPTS: Mapping[AttemptState, Mapping[AttemptEvent, AttemptState]] = MappingProxyType(
    {
        _S.SUBMITTED: {**_ENDINGS, _E.ACCEPTED: _S.QUEUED, _E.PLACED: _S.PLACED},
        _S.QUEUED: {**_ENDINGS, _E.ACCEPTED: _S.QUEUED, _E.PLACED: _S.PLACED},
        _S.PLACED: {**_ENDINGS, _E.ACCEPTED: _S.PLACED, _E.PLACED: _S.PLACED},
        _S.LOST: {**_OVER, _E.ACCEPTED: _S.LOST, _E.PLACED: _S.LOST},
        _S.REJECTED: {**_OVER, _E.ACCEPTED: _S.REJECTED, _E.PLACED: _S.REJECTED},
        _S.PARKED: {_E.UNPARKED: _S.LOST},
    }
)
#: States of an attempt that is over.
ATTEMPT_OVER = frozenset({_S.LOST, _S.REJECTED, _S.PARKED})


class ReceivedToken(NamedTuple):
    """A token as it came: from which worker, and in which numerics class that computes."""

    worker_id: str
    numerics_class: str
    delta: m.TokenDelta


class Crossed(NamedTuple):
    """A crossing: the classes of the tokens before it and of those after it, and the number of those before it."""

    kind: CrossingKind
    before: str
    after: str
    tokens: int


@dataclass(slots=True)
class OpenRequest:
    """The gateway's state of a request; `epoch` and `attempt_id` are those of the newest attempt.

    Attributes:
        deadline_unix_s: when its client gives up, whatever attempt runs then; `None` without a deadline.
        attempt: where the attempt is, by the table `ATTEMPTS`.
        first_accepted: epoch of the first attempt that a scheduler has accepted; `None` before.
        announced: its client was notified of the assignment.
        workers: those whose loss ends the attempt; without the prompt worker once the token worker has sent a token.
        senders: workers whose tokens count; `assigned`: the scheduler has named them.
        first_index: index of the attempt's first token.
        model_digest: digest of the weights that `token_ids` (committed: delivered to the client) were computed with.
        numerics_classes: classes that `token_ids` were computed in, each once, the latest last.
        early: tokens that arrived before the next one.
        prompt_logprobs: logprobs of the prompt's first tokens, which came ahead of the attempt's first one.
        hop: number of the attempt's latest move; 0 before one.
        unclaimed: tokens, with their senders, of workers that are none of its senders: it may have moved there.
        source_tokens: tokens, by index, that the attempt had when it moved: the source's message may be lost. `source_class`:
            the numerics class of these.
        gap_since_s: since when a token is missing that a later one has overtaken.
        doubted_s: workers that lost tokens since their last token here, and when.
        submitted_s, progress_s: when the attempt began, and when the last token arrived.
        held_s: when a scheduler or a worker last named the attempt as held; counts once one has it.
        accepted_s: since when a scheduler or a worker has the attempt; `None` while none has.
        lost_since_s: when the first attempt since the last token was lost, later by as long as others were held since.
        retry_at_s: when the next attempt begins, once this one is lost or rejected.
    """

    choice_id: str
    prompt_tokens: int
    received_s: float
    deadline_unix_s: float | None = None
    state: RequestState = RequestState.WAITING
    epoch: int = 0
    attempt_id: int = 0
    attempt: AttemptState = AttemptState.SUBMITTED
    first_accepted: int | None = None
    announced: bool = False
    workers: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    assigned: bool = False
    first_index: int = 0
    model_digest: str | None = None
    token_ids: list[int] = field(default_factory=list)
    numerics_classes: tuple[str, ...] = ()
    early: dict[int, ReceivedToken] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    hop: int = 0
    unclaimed: list[ReceivedToken] = field(default_factory=list)
    source_tokens: dict[int, int] = field(default_factory=dict)
    source_class: str = ""
    gap_since_s: float | None = None
    doubted_s: dict[str, float] = field(default_factory=dict)
    first_token_s: float | None = None
    submitted_s: float = 0.0
    progress_s: float = 0.0
    held_s: float = 0.0
    accepted_s: float | None = None
    lost_since_s: float | None = None
    retry_at_s: float = 0.0
    history: AttemptHistory = field(default_factory=AttemptHistory)

    def begin_attempt(self, attempt_id: int, now: float) -> None:
        """Start the next attempt from the committed tokens and reset the last one's state."""
        self.epoch += 1
        self.attempt_id = attempt_id
        self.note(AttemptEvent.BEGUN)
        self.workers, self.senders, self.assigned = (), (), False
        self.first_index = len(self.token_ids)
        if not self.token_ids:
            self.model_digest = None
        self.early.clear()
        self.prompt_logprobs.clear()
        self.hop = 0
        self.unclaimed.clear()
        self.source_tokens.clear()
        self.doubted_s.clear()
        self.gap_since_s = None
        self.submitted_s, self.accepted_s = now, None
        self.history.began()

    def note(self, event: AttemptEvent) -> None:
        """Advance the attempt's state."""
        self.attempt = follow(ATTEMPTS, self.attempt, event)

    @property
    def is_over(self) -> bool:
        """Whether its newest attempt is over, and the next one has not begun."""
        return self.attempt in ATTEMPT_OVER

    @property
    def is_parked(self) -> bool:
        """Whether it has no attempt, nor will have one, until its client reads."""
        return self.attempt is AttemptState.PARKED

    def park(self) -> None:
        """Have no attempt; the recovery of a lost one begins anew when the client reads."""
        self.note(AttemptEvent.PARKED)
        self.lost_since_s = None

    @property
    def is_first_attempt(self) -> bool:
        """Whether no earlier attempt was accepted by a scheduler: its rejection is the client's to know."""
        return self.first_accepted is None or self.first_accepted == self.epoch

    def accepted(self, now: float) -> None:
        """Note that a scheduler has the attempt, or workers have."""
        if self.first_accepted is None:
            self.first_accepted = self.epoch
        if self.accepted_s is None:
            self.accepted_s = self.held_s = now

    def was_held(self, until_s: float) -> None:
        """Note that the attempt is held no more; the time in which it was is left out of its request's recovery."""
        if self.accepted_s is not None and self.lost_since_s is not None:
            self.lost_since_s += max(0.0, until_s - self.accepted_s)
        self.accepted_s = None

    def is_overdue(self, now: float) -> bool:
        """Tell whether its client has given up; time in which the gateway was cut off counts."""
        return self.deadline_unix_s is not None and now >= self.deadline_unix_s

    def assign(self, prompt_worker: str, token_worker: str, now: float) -> None:
        """Set the workers that the scheduler named; it may be late, and the attempt have moved."""
        self.accepted(now)
        self.note(AttemptEvent.PLACED)
        if self.hop:
            self.assigned, self.senders = True, tuple(dict.fromkeys((*self.senders, prompt_worker, token_worker)))
            return
        self.assigned, self.senders = True, (prompt_worker, token_worker)
        if self.workers[-1:] != (token_worker,):  # else its tokens arrived before this message
            self.workers = self.senders

    def counts(self, batch: m.TokenBatch, delta: m.TokenDelta) -> bool:
        """Tell whether the attempt is this sender's; an unnamed worker names itself, a scheduler sends endings only."""
        is_schedulers = _is_schedulers(batch, delta)
        if batch.worker_id not in self.senders and not is_schedulers:
            if self.assigned or self.hop:
                self.unclaimed.append(ReceivedToken(batch.worker_id, batch.numerics_class, delta))
                return False
            self.note(AttemptEvent.PLACED)
            others, sender = self.workers, (batch.worker_id,)
            is_token_worker = delta.token_index > self.first_index
            self.workers = self.senders = (*others, *sender) if is_token_worker else (*sender, *others)
        if self.hop and batch.worker_id not in self.workers and delta.finish_reason is FinishReason.ERROR:
            return is_schedulers  # it does not have the attempt any more
        if (batch.worker_id,) == self.workers[-1:]:
            self.workers = self.workers[-1:]  # the prompt worker's part is done; its loss changes nothing
        return True

    def prompt_worker_left(self, worker_id: str) -> None:
        """Note that a worker handed over all that it had: of this attempt its prompt, if the token worker is another one."""
        if self.assigned and self.workers[-1:] != (worker_id,):
            self.workers = self.workers[-1:]

    def move(self, report: m.RequestMoved) -> list[ReceivedToken]:
        """Take the worker of a move for the attempt's, unless a later move is known; return its tokens that have waited."""
        if report.hop <= self.hop:
            return []
        self.hop = report.hop
        self.note(AttemptEvent.PLACED)
        before, self.workers = self.workers, (report.worker_id,)
        self.senders = tuple(dict.fromkeys((report.worker_id, report.source_id, *before)))
        self.source_tokens = dict(enumerate(report.token_ids, report.first_index))
        self.source_class = report.source_class
        claimed = [each for each in self.unclaimed if each.worker_id in self.senders]
        self.unclaimed = [each for each in self.unclaimed if each.worker_id not in self.senders]
        return claimed

    def closing(self, *, finished: bool) -> m.CloseRequest:
        """Return the message that ends its attempts wherever they are."""
        return m.CloseRequest(self.choice_id, self.epoch, finished, () if finished else self.workers)

    def holder(self) -> m.MoveAcknowledged:
        """Return the message that names the worker that has the attempt since its last move."""
        return m.MoveAcknowledged(self.choice_id, self.epoch, self.workers[-1], self.hop)

    def has_left(self, batch: m.TokenBatch, delta: m.TokenDelta) -> bool:
        """Tell whether a token was computed by a worker that the attempt had moved away from: it does not know that yet."""
        is_former = bool(self.hop) and batch.worker_id not in self.workers and not _is_schedulers(batch, delta)
        return is_former and delta.token_index not in self.source_tokens

    def missed_before(self, delta: m.TokenDelta) -> list[ReceivedToken]:
        """Return the tokens that lack before this one, where they are those of a move's source; empty where some are not."""
        lacking = range(len(self.token_ids), delta.token_index)
        if not all(index in self.source_tokens for index in lacking):
            return []
        deltas = (m.TokenDelta(self.attempt_id, index, self.source_tokens[index]) for index in lacking)
        return [ReceivedToken("", self.source_class, each) for each in deltas]

    def doubt(self, worker_id: str, since_s: float) -> None:
        """Note that a worker has lost tokens, which may be this attempt's."""
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

    def with_all_logprobs(self, delta: m.TokenDelta) -> m.TokenDelta | None:
        """Return a first token with all log-probabilities of the prompt; `None` where some are lost."""
        if delta.prompt_logprobs is None:
            return delta
        scores = (*self.prompt_logprobs, *delta.prompt_logprobs)
        self.prompt_logprobs.clear()
        return delta._replace(prompt_logprobs=scores) if len(scores) == self.prompt_tokens else None

    def commit(self, token: ReceivedToken, now: float) -> tuple[list[m.TokenDelta], list[Crossed]]:
        """Append the next token and the early ones that follow it; return them, and the crossings on the way."""
        self.accepted(now)
        ready: list[m.TokenDelta] = []
        crossed: list[Crossed] = []
        following: ReceivedToken | None = token
        while following is not None and following.delta.token_id is not None:
            if following.numerics_class and self.numerics_classes[-1:] != (following.numerics_class,):
                crossed += self._enter_class(following.numerics_class)
            ready.append(following.delta)
            self.token_ids.append(following.delta.token_id)
            following = self.early.pop(len(self.token_ids), None)
        if self.first_token_s is None:
            self.first_token_s = now
            self.state = advance(self.state, RequestEvent.PREFILL_STARTED)
        self.progress_s, self.lost_since_s = now, None
        self.gap_since_s = now if self.early else None
        self.history.brought(len(ready))
        return ready, crossed

    def _enter_class(self, numerics_class: str) -> list[Crossed]:
        """Note the class of the next token; return the crossing, if it is one."""
        before = self.numerics_classes[-1] if self.numerics_classes else ""
        self.numerics_classes = with_class(self.numerics_classes, numerics_class)
        if not is_crossing(before, numerics_class):
            return []
        is_first = len(self.token_ids) == self.first_index
        kind = CrossingKind.RECOVERY if is_first else CrossingKind.MOVE if self.hop else CrossingKind.HAND_OFF
        return [Crossed(kind, before, numerics_class, len(self.token_ids))]

    def facts(self, now: float) -> dict[str, str | int | float]:
        """Return the ledger's facts of an ended request, times in seconds."""
        tokens = len(self.token_ids)
        facts: dict[str, str | int | float] = {
            "finish": self.state.value.removeprefix("finished_"),
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": tokens,
            "attempts": self.epoch,
            "e2e_s": now - self.received_s,
        }
        if self.first_token_s is not None:
            facts["ttft_s"] = self.first_token_s - self.received_s
            if tokens > 1:
                facts["tpot_s"] = (self.progress_s - self.first_token_s) / (tokens - 1)
        return facts

    def is_unheld(self, now: float, unheld_s: float | None) -> bool:
        """Tell whether no member has shown for longer than `unheld_s` that it holds the attempt. An attempt that is still
        to be submitted is held here; its submission ends by itself, in an answer or a failure.
        """
        if unheld_s is None or self.accepted_s is None:
            return False
        return now - max(self.held_s, self.progress_s) > unheld_s

    def was_away(self, seconds: float) -> None:
        """Extend all timeouts by a time in which the gateway was cut off."""
        self.submitted_s += seconds
        self.held_s += seconds
        self.doubted_s = {worker_id: since_s + seconds for worker_id, since_s in self.doubted_s.items()}
        if self.gap_since_s is not None:
            self.gap_since_s += seconds


def _is_schedulers(batch: m.TokenBatch, delta: m.TokenDelta) -> bool:
    return batch.number is None and delta.finish_reason is FinishReason.ERROR
