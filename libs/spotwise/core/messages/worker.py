"""Orders to workers, from schedulers and from other workers, and the workers' answers."""

from __future__ import annotations

from enum import StrEnum

from spotwise.core.messages.members import Pool
from spotwise.core.requests.record import KvTarget
from spotwise.core.values import value

#: A choice, and the epoch of its attempt.
Attempt = tuple[str, int]


@value
class OfAttempt:
    """Base of messages about one attempt at a choice."""

    choice_id: str
    epoch: int


@value
class StreamRef:
    """Where a sequence's tokens go: a gateway's incarnation, which numbers its attempts from 1, and the attempt there."""

    gateway_id: str
    attempt_id: int
    incarnation: int = 0


@value
class ReserveKv(OfAttempt):
    """Reserve blocks for a sequence whose KV another worker computes; `KvReserved` or `KvRefused` answers.

    Attributes:
        assignment: the scheduler's running number; heartbeats echo the last one received, to reconcile its view.
        kv_tokens: tokens to hold at most, prompt and new ones; the worker decides for how many it takes blocks at once.
        lease_s: seconds after its last renewal at which the reservation expires.
        source_id: the worker that the sequence moves away from, which is answered instead of the scheduler and numbers its own
            orders; empty for a new request.
        hop: number of the move, from 1; 0 for a new request.
        term: term of the scheduler that orders it, 0 for another worker; a worker obeys none of an earlier term than
            the latest.
        priority, tenant: as in its record, which the worker does not have yet.
        numerics_class: in which the KV to come is computed.
    """

    stream: StreamRef
    scheduler_id: str
    assignment: int
    kv_tokens: int
    max_new_tokens: int
    lease_s: float
    source_id: str = ""
    hop: int = 0
    term: int = 0
    priority: int = 0
    tenant: str = ""
    numerics_class: str = ""


@value
class StartPrefill(OfAttempt):
    """Compute the prompt, sample one token, deliver the KV to `target`, the reservation. Where both phases are here, `target`
    is this worker without blocks: the prompt waits for its first ones, and `PrefillAccepted` or `KvRefused` answers. `term`:
    as in `ReserveKv`.
    """

    stream: StreamRef
    scheduler_id: str
    assignment: int
    prompt_tokens: int
    target: KvTarget
    lease_s: float
    max_new_tokens: int
    term: int = 0


@value
class CancelRequest(OfAttempt):
    """Drop all attempts of the sequence up to `epoch`, without an answer; `term`: as in `ReserveKv`."""

    term: int = 0


@value
class MoveRequest(OfAttempt):
    """Move a sequence that decodes here to `target_id`, with its KV; `MoveEnded` answers `sender_id`, in any case and once.
    `term`: of the planner that orders it, 0 for an operator; a worker obeys no earlier term than the last that it was sent.
    """

    sender_id: str
    target_id: str
    term: int = 0


@value
class GiveBackRequest(OfAttempt):
    """End a sequence here as retryable: its gateway makes the next attempt, and another worker computes its tokens again.
    `term`: of the planner that orders it.
    """

    reason: str
    term: int


@value
class SurveyWorker:
    """Report what runs here; `WorkerSurveyed` answers `sender_id` with the same `number`."""

    sender_id: str
    number: int


@value
class SurveyedSequence(OfAttempt):
    """A sequence of a surveyed worker.

    Attributes:
        tokens: with KV, on the device or the host; 0 where it could not be moved now (its prompt is computed, its KV is being
            swapped).
        known_tokens: prompt and output tokens so far; `remaining`: new tokens that it may still get here, at most.
        target_id: the worker that it is on its way to, if any.
    """

    tokens: int
    known_tokens: int
    remaining: int
    target_id: str = ""


@value
class WorkerSurveyed:
    """What decodes on a worker, or will, in order of arrival; `step_s`: seconds of an iteration lately, if any."""

    worker_id: str
    number: int
    step_s: float | None
    sequences: tuple[SurveyedSequence, ...]


class MoveOutcome(StrEnum):
    """How a move ended."""

    MOVED = "moved"
    REFUSED = "refused"  #: nothing was tried, or the target has no room
    FAILED = "failed"  #: the hand-off failed; the sequence goes on where it was
    ENDED = "ended"  #: the sequence ended first


@value
class MoveEnded(OfAttempt):
    """How a move from `worker_id` to `target_id` ended; of one that moved, its tokens with KV, the seconds of their copy and of
    its pause, where these are known.
    """

    worker_id: str
    target_id: str
    outcome: MoveOutcome
    reason: str = ""
    tokens: int = 0
    copy_s: float = 0.0
    pause_s: float = 0.0


@value
class RequestMoved(OfAttempt):
    """The sequence decodes on `worker_id` now; repeated until its gateway's `MoveAcknowledged`.

    Attributes:
        source_id, hop: the worker that it came from, and the number of the move, from 1.
        first_index: index in the sequence's output of the attempt's first token.
        token_ids: those that the attempt had when it came, so that the gateway need not wait for a lost message of the source;
            none where they are not all of `source_class`, that worker's numerics class.

    Raises:
        ValueError: the move has no number.
    """

    attempt_id: int
    worker_id: str
    source_id: str
    hop: int
    first_index: int = 0
    token_ids: tuple[int, ...] = ()
    source_class: str = ""

    def __post_init__(self) -> None:
        if self.hop < 1:
            raise ValueError("moves are numbered from 1")


@value
class MoveAcknowledged(OfAttempt):
    """The gateway takes the attempt's tokens from `worker_id`, since move `hop`: that worker need not repeat itself, and others
    drop what they hold, unless by a later move.
    """

    worker_id: str
    hop: int


@value
class ChangeHomePool:
    """Take another home pool; sequences that the worker holds stay. `term`: as in `ReserveKv`."""

    worker_id: str
    pool: Pool
    term: int = 0


@value
class Drain:
    """Take no new requests, let running ones finish, then leave; at the deadline the rest fails as retryable.

    Attributes:
        deadline_s: Unix time.
        devices_stay: the devices of a group, the leader's too, stay in the mesh and may compute for other groups.
        term: term of the planner that orders it; 0 for a watcher or an operator.
    """

    worker_id: str
    deadline_s: float
    reason: str = ""
    devices_stay: bool = False
    term: int = 0


@value
class ForgetGateway:
    """Drop every sequence whose tokens go to that incarnation of a gateway, or to an earlier one: it is gone. `term`: as in
    `ReserveKv`.
    """

    gateway_id: str
    incarnation: int
    term: int = 0


@value
class KvReserved(OfAttempt):
    """The reservation of order `assignment` is made."""

    assignment: int
    target: KvTarget


@value
class PrefillAccepted(OfAttempt):
    """The request of order `assignment` is queued here for both its phases."""

    assignment: int
    worker_id: str


@value
class KvRefused(OfAttempt):
    """Order `assignment` finds no free blocks, or the worker takes nothing new."""

    assignment: int
    worker_id: str
    reason: str


@value
class RenewLeases:
    """The prompt worker still needs these reservations."""

    leases: tuple[Attempt, ...]
