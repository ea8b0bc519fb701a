"""What the roles say to one another.

Law: an imperative name is an order to its receiver, a past-tense name a report; a receiver treats either as an event. Every
message about a request carries the attempt's epoch, and the receiver ignores epochs it has seen the end of. Messages hold
decisions only: token ids of prompts stay in the request store, KV bytes on the transfer plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from spotwise.core.members import GatewayStreams as GatewayStreams
from spotwise.core.members import Member as Member
from spotwise.core.members import MemberKind as MemberKind
from spotwise.core.members import MemberState as MemberState
from spotwise.core.members import Pool as Pool
from spotwise.core.members import QuarantinedPair as QuarantinedPair
from spotwise.core.members import WorkerLoad as WorkerLoad
from spotwise.core.record import KvTarget
from spotwise.core.request import FinishReason
from spotwise.core.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StreamRef:
    """Where a sequence's tokens go: one process that is a gateway, and the attempt's number there.

    Attributes:
        incarnation: of the gateway; the one after it numbers its attempts from 1 again, and must not hear of these.
    """

    gateway_id: str
    attempt_id: int
    incarnation: int = 0


#: Whose fault a lost attempt may be: a worker, or the prompt worker and the token worker of a hand-off that failed.
Suspects = tuple[str, ...]


#: A request, and the epoch of its attempt.
Attempt = tuple[str, int]


class RejectCode(StrEnum):
    """Why the scheduler does not take a request."""

    MESH_FULL = "mesh_full"
    NO_WORKERS = "no_workers"
    NEVER_FITS = "never_fits"
    QUEUE_TIMEOUT = "queue_timeout"


# --- gateway -> scheduler ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Route this sequence; its record is in the store.

    Attributes:
        prompt_tokens: tokens to prefill: the prompt, and outputs committed by earlier attempts.
        max_new_tokens: tokens still owed at most.
        prefix_spans: hashes of the prompt's beginnings, see `prefix_spans.py`: who was sent the same may still hold its KV.
        priority: of those that wait for room, the lower number comes first.
        avoid: what its earlier attempts failed of, the latest last.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    prompt_tokens: int
    max_new_tokens: int
    prefix_spans: tuple[int, ...] = ()
    priority: int = 0
    avoid: tuple[Suspects, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """The gateway is done with the sequence: all attempts up to `epoch`. Unless it finished, workers must drop it."""

    choice_id: str
    epoch: int
    finished: bool


@dataclass(frozen=True, slots=True)
class AttemptsConfirmed:
    """Of the attempts that a holder named, `ended` are over, and all others are open."""

    ended: tuple[Attempt, ...]


# --- worker or scheduler -> gateway -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfirmAttempts:
    """Say which of these attempts are over: `holder_id` holds something for them; see `confirmation.py`."""

    holder_id: str
    attempts: tuple[Attempt, ...]


# --- scheduler -> gateway ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """The scheduler will assign the sequence, or reject it later."""

    choice_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """The sequence will not be served; `retry_after_s` says when asking again makes sense, if ever."""

    choice_id: str
    epoch: int
    code: RejectCode
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestAssigned:
    """Both phases have their worker, which has taken the request."""

    choice_id: str
    epoch: int
    prompt_worker: str
    token_worker: str


# --- scheduler -> worker ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReserveKv:
    """Hold blocks for a sequence whose prompt another worker will compute.

    Attributes:
        scheduler_id: who asks, and gets `KvReserved` or `KvRefused`.
        assignment: the scheduler's running number; heartbeats echo the last one seen, so that its view can be reconciled.
        kv_tokens: tokens to hold at most: prompt and all new ones; for how many blocks are held at once, the worker decides.
        max_new_tokens: new tokens at most.
        lease_s: the reservation is dropped that long after its last renewal.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    scheduler_id: str
    assignment: int
    kv_tokens: int
    max_new_tokens: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class StartPrefill:
    """Compute the prompt, sample one token, deliver the KV to `target`.

    Attributes:
        scheduler_id: who asks. Where both phases are on one worker, it gets `PrefillAccepted` or `KvRefused`.
        target: the reservation; where both phases are on the addressed worker, itself, with no blocks: nothing is reserved, the
            prompt waits there for its first blocks and may preempt for them.
        max_new_tokens: new tokens at most.
    """

    choice_id: str
    epoch: int
    stream: StreamRef
    scheduler_id: str
    assignment: int
    prompt_tokens: int
    target: KvTarget
    lease_s: float
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Drop all attempts of the sequence up to `epoch`; nobody waits for an answer."""

    choice_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ChangeHomePool:
    """Be of that pool from now on: what is here stays, and only what comes later differs."""

    worker_id: str
    pool: Pool


@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new requests, let running ones finish, then leave; whatever runs at the deadline is given back."""

    worker_id: str
    deadline_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForgetGateway:
    """Drop every sequence whose tokens go to that incarnation of a gateway, or to an earlier one: it is gone."""

    gateway_id: str
    incarnation: int


# --- worker -> scheduler ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvReserved:
    """The reservation that order `assignment` asked for stands."""

    choice_id: str
    epoch: int
    assignment: int
    target: KvTarget


@dataclass(frozen=True, slots=True)
class PrefillAccepted:
    """The request of order `assignment` waits here for both its phases."""

    choice_id: str
    epoch: int
    assignment: int
    worker_id: str


@dataclass(frozen=True, slots=True)
class KvRefused:
    """There is no room for order `assignment`, or the worker takes nothing new."""

    choice_id: str
    epoch: int
    assignment: int
    worker_id: str
    reason: str


# --- worker -> worker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RenewLeases:
    """The prompt worker still works on these (request id, epoch) pairs."""

    leases: tuple[tuple[str, int], ...]


# --- worker -> gateway ------------------------------------------------------------------------------------------------


class TokenDelta(NamedTuple):
    """What one iteration brought one stream; a tuple, since one is made for every token, here and at its gateway.

    Attributes:
        attempt_id: the attempt, at its gateway.
        token_index: index of `token_id` in the sequence's output, from 0; for an ending without a token, the number of
            tokens sent before.
        token_id: the new token; `None` where the stream ends without one, and for a first token of an engine whose tokens carry
            no ids: of such a stream there are no further ones but the end.
        finish_reason: set with the last delta of the stream.
        error: says why, where `finish_reason` is ERROR.
        retryable: another attempt may succeed.
        queue_s: with a sequence's first token here: seconds from the order to its prefill.
        cached_tokens: with a sequence's first token here: tokens of its prompt that needed no computing.
        logprobs, prompt_logprobs: where the client asked for them.
        suspects: with a retryable error that another choice of workers may avoid.
    """

    attempt_id: int
    token_index: int
    token_id: int | None
    finish_reason: FinishReason | None = None
    error: str = ""
    retryable: bool = False
    queue_s: float | None = None
    cached_tokens: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    suspects: Suspects = ()


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """All that one iteration of one worker has for one gateway; a scheduler ends streams with one, too.

    Attributes:
        worker_id: the sender.
        deltas: at most one a stream.
        incarnation: of the sender.
        number: counts the batches of this incarnation of the worker to this incarnation of the gateway, from 1, so that a lost
            one leaves a gap; `None` in a scheduler's.
    """

    worker_id: str
    deltas: tuple[TokenDelta, ...]
    incarnation: int = 0
    number: int | None = None


# --- spot watcher -> whoever plans --------------------------------------------------------------------------------------


class InterruptionKind(StrEnum):
    """What is known of an interruption."""

    HINT = "hint"  #: it is likely, and nobody says when
    NOTICE = "notice"  #: it is certain, and so is its deadline
    WITHDRAWN = "withdrawn"  #: it was said, and is said no more
    LOST = "lost"  #: it has happened: workers fell silent or were restarted without a word


@dataclass(frozen=True, slots=True)
class InterruptionReported:
    """What a cloud, or the silence of workers, says of one machine. A worker acts on `Drain`, and whoever plans on this.

    Attributes:
        watcher_id: who saw it.
        event_id: the same in all reports of one sign.
        worker_ids: who is on that machine, as far as the watcher knows, in order of id; they go together.
        deadline_s: Unix time at which the machine may be gone; `None` for a hint, and where a sign was withdrawn.
    """

    watcher_id: str
    event_id: str
    kind: InterruptionKind
    worker_ids: tuple[str, ...]
    deadline_s: float | None
    reason: str = ""


# --- spot watcher -> operator -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrainReply:
    """The spot watcher's answer to who asked for a drain."""

    accepted: bool
    detail: str


# --- the request's ledger ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of a request's ledger: what a member did for it.

    Attributes:
        stage: `received` (where the client has an id of its own), `assigned`, `prefilled`, `handed_off`, `kv_received`,
            `preempted`, `decoded`, `failed`, `attempt_lost` or `completed`.
        at_s: Unix time.
        facts: (name, value) pairs; names carry their unit.
    """

    choice_id: str
    epoch: int
    stage: str
    member_id: str
    at_s: float
    facts: tuple[tuple[str, str | int | float], ...]


Message = (
    SubmitRequest
    | CloseRequest
    | ConfirmAttempts
    | AttemptsConfirmed
    | RequestAccepted
    | RequestRejected
    | RequestAssigned
    | ReserveKv
    | StartPrefill
    | CancelRequest
    | ChangeHomePool
    | ForgetGateway
    | Drain
    | DrainReply
    | InterruptionReported
    | KvReserved
    | PrefillAccepted
    | KvRefused
    | RenewLeases
    | TokenBatch
    | Member
)


@dataclass(frozen=True, slots=True)
class Send:
    """Command: put `message` into the inbox of `recipient_id`.

    Attributes:
        incarnation: the only one of a gateway that is meant: an inbox is one incarnation's there; `None` for other members.
    """

    recipient_id: str
    message: Message
    incarnation: int | None = None


def to_gateway(stream: StreamRef, message: Message) -> Send:
    """Return the command that sends to the gateway of a stream."""
    return Send(stream.gateway_id, message, stream.incarnation)


@dataclass(frozen=True, slots=True)
class RecordLedger:
    """Command: append an entry to the request's ledger."""

    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: time passed; roles look at their deadlines.

    Attributes:
        away_s: seconds since the last tick in which this member could not have heard anybody: its process stood still, or the
            broker did. Silence in that time says nothing about others, and deadlines that silence ends are put off by it.
    """

    away_s: float = 0.0
