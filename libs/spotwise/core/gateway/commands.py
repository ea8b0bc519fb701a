"""Events and commands of the gateway role."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import CrossingKind
from spotwise.core.requests.request import FinishReason


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A client submitted a choice: `max_new_tokens` tokens at most after a prompt of `prompt_tokens`, until `deadline_unix_s`
    (Unix time; `None` without a deadline).
    """

    choice_id: str
    prompt_tokens: int
    max_new_tokens: int
    deadline_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestResumed:
    """This gateway takes over a choice: `token_ids` came of another one's attempts, of which `epoch` is the last (0: none).
    `model_digest` is of the weights that drew them, and `numerics_classes` those that they were computed in; the deadline is as
    in `RequestReceived`.
    """

    choice_id: str
    prompt_tokens: int
    epoch: int
    token_ids: tuple[int, ...]
    model_digest: str | None = None
    numerics_classes: tuple[str, ...] = ()
    deadline_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTaken:
    """Another connection or gateway has taken the choice over."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class RequestClosed:
    """The client takes no more tokens: it disconnected, or a stop string ended its text (`text_ended`)."""

    choice_id: str
    text_ended: bool = False


@dataclass(frozen=True, slots=True)
class ReaderStalled:
    """The client leaves its tokens lying: more than the gateway holds for it."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class ReaderCaughtUp:
    """The client, which had stalled, has taken its tokens."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class SubmitFailed:
    """The scheduler was unreachable, or the request's record could not be written (`store_is_away`)."""

    choice_id: str
    epoch: int
    reason: str
    store_is_away: bool = False


@dataclass(frozen=True, slots=True)
class BusReconnected:
    """The broker was away, and messages under way were lost."""


GatewayEvent = (
    RequestReceived
    | RequestResumed
    | RequestTaken
    | BusReconnected
    | RequestClosed
    | ReaderStalled
    | ReaderCaughtUp
    | SubmitFailed
    | m.RequestAccepted
    | m.RequestAssigned
    | m.RequestRejected
    | m.TokenBatch
    | m.RequestMoved
    | m.ConfirmAttempts
    | m.Member
    | m.Tick
)


@dataclass(frozen=True, slots=True)
class SubmitAttempt:
    """Write the record with these output tokens, then submit it; `model_digest` is of the weights that drew them, and
    `numerics_classes` those that they were computed in; `recovering` as in `SubmitRequest`.
    """

    choice_id: str
    epoch: int
    attempt_id: int
    output_token_ids: tuple[int, ...]
    model_digest: str | None = None
    numerics_classes: tuple[str, ...] = ()
    avoid: tuple[m.Suspects, ...] = ()
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class CloseAttempts:
    """Notify the scheduler that the request is over, and delete its record."""

    order: m.CloseRequest


@dataclass(frozen=True, slots=True)
class DeleteRecord:
    """Delete the record of a request that is over, and whose last attempt the scheduler has rejected."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class ParkAttempts:
    """Notify the scheduler that the attempts are over; the record stays, for the next one."""

    order: m.CloseRequest


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand tokens to the client."""

    choice_id: str
    tokens: tuple[m.TokenDelta, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Accept:
    """Notify the client that workers were assigned."""

    choice_id: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Fail the client's request.

    Attributes:
        code: a `RejectCode`, or one of `FAIL_*`.
        retry_after_s: after which the client may try again.
        is_charged: workers computed for it, and it ended for a reason of its own: its deadline, a grammar that cannot be
            followed, that it fells workers, or that its client resumed or cancelled it.
    """

    choice_id: str
    code: str
    message: str
    retry_after_s: float | None = None
    is_charged: bool = False


@dataclass(frozen=True, slots=True)
class CountCrossing:
    """Count that a request has gone on in another numerics class."""

    choice_id: str
    kind: CrossingKind


@dataclass(frozen=True, slots=True)
class PublishLoad:
    """Let planners know of the load."""

    report: m.LoadReported


FAIL_NO_SCHEDULER = "no_scheduler"
FAIL_NOT_RECOVERED = "not_recovered"
FAIL_ENGINE = "engine_error"
FAIL_GRAMMAR = "grammar_not_followed"
FAIL_TOO_LARGE = "report_too_large"
FAIL_STORE = "store_unavailable"
FAIL_FELLS_WORKERS = "fells_workers"
FAIL_TAKEN = "resumed_elsewhere"
TAKEN = "this request was resumed on another connection, which has its answer from now on"
FELLS_WORKERS = (
    "three workers in a row ended or failed while they computed this request, and it is not given to another; "
    "do not send it again as it is"
)

GatewayCommand = (
    SubmitAttempt
    | CloseAttempts
    | DeleteRecord
    | ParkAttempts
    | Deliver
    | Accept
    | Fail
    | CountCrossing
    | PublishLoad
    | m.Send
    | m.RecordLedger
)
