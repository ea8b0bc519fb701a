"""Messages between members: an imperative name is an order, a past-tense name a report.

Receivers ignore epochs that have ended. Prompts' token ids stay in the request store, KV bytes on the transfer plane.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from spotwise.core.messages.fleet import FleetInstance as FleetInstance
from spotwise.core.messages.fleet import FleetOrder as FleetOrder
from spotwise.core.messages.fleet import FleetReported as FleetReported
from spotwise.core.messages.fleet import FleetView as FleetView
from spotwise.core.messages.fleet import InstanceOffer as InstanceOffer
from spotwise.core.messages.fleet import InstanceReason as InstanceReason
from spotwise.core.messages.fleet import InstanceRelease as InstanceRelease
from spotwise.core.messages.fleet import LearnedLives as LearnedLives
from spotwise.core.messages.fleet import LoadReported as LoadReported
from spotwise.core.messages.fleet import Purchase as Purchase
from spotwise.core.messages.fleet import PurchaseStatus as PurchaseStatus
from spotwise.core.messages.fleet import ShowFleet as ShowFleet
from spotwise.core.messages.fleet import WantedInstances as WantedInstances
from spotwise.core.messages.members import GatewayStreams as GatewayStreams
from spotwise.core.messages.members import Member as Member
from spotwise.core.messages.members import MemberKind as MemberKind
from spotwise.core.messages.members import MemberState as MemberState
from spotwise.core.messages.members import Pool as Pool
from spotwise.core.messages.members import QuarantinedPair as QuarantinedPair
from spotwise.core.messages.members import WorkerLoad as WorkerLoad
from spotwise.core.messages.reshape import DeviceGroup as DeviceGroup
from spotwise.core.messages.reshape import DeviceSurveyed as DeviceSurveyed
from spotwise.core.messages.reshape import GroupFormed as GroupFormed
from spotwise.core.messages.reshape import GroupMembership as GroupMembership
from spotwise.core.messages.reshape import LeadGroup as LeadGroup
from spotwise.core.messages.reshape import PlannedWeights as PlannedWeights
from spotwise.core.messages.reshape import PredictedReshape as PredictedReshape
from spotwise.core.messages.reshape import ReshapeMesh as ReshapeMesh
from spotwise.core.messages.reshape import ReshapeReply as ReshapeReply
from spotwise.core.messages.reshape import SurveyDevice as SurveyDevice
from spotwise.core.messages.worker import Attempt as Attempt
from spotwise.core.messages.worker import CancelRequest as CancelRequest
from spotwise.core.messages.worker import ChangeHomePool as ChangeHomePool
from spotwise.core.messages.worker import Drain as Drain
from spotwise.core.messages.worker import ForgetGateway as ForgetGateway
from spotwise.core.messages.worker import GiveBackRequest as GiveBackRequest
from spotwise.core.messages.worker import KvRefused as KvRefused
from spotwise.core.messages.worker import KvReserved as KvReserved
from spotwise.core.messages.worker import MoveAcknowledged as MoveAcknowledged
from spotwise.core.messages.worker import MoveEnded as MoveEnded
from spotwise.core.messages.worker import MoveOutcome as MoveOutcome
from spotwise.core.messages.worker import MoveRequest as MoveRequest
from spotwise.core.messages.worker import OfAttempt as OfAttempt
from spotwise.core.messages.worker import PrefillAccepted as PrefillAccepted
from spotwise.core.messages.worker import RenewLeases as RenewLeases
from spotwise.core.messages.worker import RequestMoved as RequestMoved
from spotwise.core.messages.worker import ReserveKv as ReserveKv
from spotwise.core.messages.worker import StartPrefill as StartPrefill
from spotwise.core.messages.worker import StreamRef as StreamRef
from spotwise.core.messages.worker import SurveyedSequence as SurveyedSequence
from spotwise.core.messages.worker import SurveyWorker as SurveyWorker
from spotwise.core.messages.worker import WorkerSurveyed as WorkerSurveyed
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.core.values import value

#: Workers that a lost attempt may be the fault of: one, or the prompt worker and the token worker of a failed hand-off.
Suspects = tuple[str, ...]


@value
class SubmitRequest(OfAttempt):
    """Route a sequence, whose record is in the store; `prompt_tokens` includes outputs committed by earlier attempts.

    Attributes:
        prefix_spans: hashes of the prompt's prefixes (`prefixes.py`): workers that were sent the same may hold their KV.
        priority: among queued requests the lower number comes first.
        avoid: suspects of its earlier attempts, the latest last.
        deadline_unix_s: Unix time at which its client gives up; the same in every attempt; `None` without one.
        recovering: an earlier attempt was accepted: no bound of the queue rejects it any more.
        open_bound: `max_new_tokens` is its gateway's guess, which can be less: its client gave none.
        tenant: whose it is, as in its record.
        numerics_class: class of its latest token (`numerics.py`); empty without tokens.
    """

    stream: StreamRef
    prompt_tokens: int
    max_new_tokens: int
    prefix_spans: tuple[int, ...] = ()
    priority: int = 0
    avoid: tuple[Suspects, ...] = ()
    deadline_unix_s: float | None = None
    recovering: bool = False
    open_bound: bool = False
    tenant: str = ""
    numerics_class: str = ""


@value
class CloseRequest(OfAttempt):
    """End all attempts of a sequence up to `epoch`; unless it finished, workers must drop it. `workers`: those that have it as
    far as its gateway knows; where its scheduler knows nothing of it, they are sent the cancellation.
    """

    finished: bool
    workers: tuple[str, ...] = ()


@value
class RequestAccepted(OfAttempt):
    """The scheduler will assign the sequence, or reject it later."""


class RejectCode(StrEnum):
    """Why the scheduler rejects a request; `BOUND_TOO_LARGE`: an open bound is more than any worker holds now, and
    the next attempt has another; `NO_CLASS`: no worker of its numerics class has come, and none of another may go on.
    """

    MESH_FULL = "mesh_full"
    NO_WORKERS = "no_workers"
    NEVER_FITS = "never_fits"
    BOUND_TOO_LARGE = "bound_too_large"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    NO_CLASS = "no_class"


@value
class RequestRejected(OfAttempt):
    """The sequence will not be served; `None` for `retry_after_s` where retrying makes no sense."""

    code: RejectCode
    message: str
    retry_after_s: float | None = None


@value
class RequestAssigned(OfAttempt):
    """Both phases have a worker, and these have taken the request."""

    prompt_worker: str
    token_worker: str


@value
class ConfirmAttempts:
    """Report which of these attempts are over, to a worker or scheduler that holds them (`confirmation.py`).
    `assigned`: by a scheduler, to workers that hold them and ask themselves.
    """

    holder_id: str
    attempts: tuple[Attempt, ...]
    assigned: bool = False


@value
class AttemptsConfirmed:
    """Of the named attempts, `ended` are over and all others are open."""

    ended: tuple[Attempt, ...]


class TokenDelta(NamedTuple):
    """One iteration's output for one stream; a tuple, since one is made for every token.

    Attributes:
        token_index: index of `token_id` in the sequence's output, from 0; in an ending without one, the number sent before.
        token_id: `None` where the stream ends without one, where log-probabilities of the prompt come ahead of its first token,
            and for a first token of an engine whose tokens carry no ids, which is followed by the stream's end only.
        finish_reason: set with the last delta of the stream; `error` is the reason where it is ERROR.
        queue_s: with a sequence's first token here: seconds from the order to its prefill.
        cached_tokens: with a sequence's first token here: prompt tokens found in the prefix cache.
        suspects: with a retryable error that another choice of workers may avoid.
        prompt_logprobs: with the first token, as in `SampledToken`; the last of them where others came ahead of it.
        embedding: embedding of the prompt, with the first token, where it was requested; as in `SampledToken`.
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
    embedding: tuple[float, ...] | None = None


@value
class TokenBatch:
    """One iteration's deltas for one gateway, in several batches where they are large (`worker/sequences/table.py`); a
    scheduler ends streams with one, too. `number` counts the sender's batches to this incarnation from 1, so that a lost one
    leaves a gap; `None` in a scheduler's. `numerics_class`: in which the worker computes.
    """

    worker_id: str
    deltas: tuple[TokenDelta, ...]
    incarnation: int = 0
    number: int | None = None
    numerics_class: str = ""


class InterruptionKind(StrEnum):
    """How certain an interruption is."""

    HINT = "hint"  #: likely, without a deadline
    NOTICE = "notice"  #: certain, with a deadline
    WITHDRAWN = "withdrawn"  #: reported before, and not any more
    LOST = "lost"  #: it has happened: workers fell silent or were restarted without a notice


@value
class InterruptionReported:
    """A sign, from a cloud or the silence of workers, that a machine goes. Workers act on `Drain`, planners on this.

    Attributes:
        event_id: the same in all reports of one sign.
        worker_ids: workers and devices known to be on that machine, in order of id; they go together.
        deadline_s: Unix time at which the machine may be gone; `None` for a hint or a withdrawal.
    """

    watcher_id: str
    event_id: str
    kind: InterruptionKind
    worker_ids: tuple[str, ...]
    deadline_s: float | None
    reason: str = ""


@value
class DrainReply:
    """The spot watcher's answer to a requested drain."""

    accepted: bool
    detail: str


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
    | MoveRequest
    | MoveEnded
    | GiveBackRequest
    | SurveyWorker
    | WorkerSurveyed
    | RequestMoved
    | MoveAcknowledged
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
    | ReshapeMesh
    | ReshapeReply
    | SurveyDevice
    | DeviceSurveyed
    | LeadGroup
    | GroupFormed
    | LoadReported
    | FleetReported
    | FleetOrder
    | ShowFleet
    | FleetView
)


@value
class Send:
    """Command: put `message` into the inbox of `recipient_id`; a gateway has an inbox for each `incarnation`."""

    recipient_id: str
    message: Message
    incarnation: int | None = None


def to_gateway(stream: StreamRef, message: Message) -> Send:
    """Return the command that sends to the gateway of a stream."""
    return Send(stream.gateway_id, message, stream.incarnation)


@value
class LedgerEntry(OfAttempt):
    """One line of a request's ledger: what a member did for it, at Unix time `at_s`; the names of `facts` carry their unit.

    `stage`: `received` (where the client has an id of its own), `assigned`, `prefilled`, `handed_off`, `kv_received`, `moved`,
    `move_failed`, `given_back`, `preempted`, `decoded`, `failed`, `attempt_lost`, `crossed` or `completed`.
    """

    stage: str
    member_id: str
    at_s: float
    facts: tuple[tuple[str, str | int | float], ...]


@value
class RecordLedger:
    """Command: append an entry to the request's ledger."""

    entry: LedgerEntry


@value
class Tick:
    """Event: time passed; roles check their deadlines. For `away_s` of it this process or the broker was away: silence in
    that time is no sign of a loss, and deadlines that silence ends are extended by it.
    """

    away_s: float = 0.0
