"""Events and commands of the spot watcher's role, beside the messages of the mesh."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages.members import Member
from spotwise.core.messages.mesh import DrainReply, InterruptionReported, Tick
from spotwise.core.messages.worker import Drain
from spotwise.core.spot.signs import MetadataAnswered


@dataclass(frozen=True, slots=True)
class WatchStarted:
    """The machine's cloud is known; it is polled every `poll_s` while it answers."""

    cloud: str
    poll_s: float


@dataclass(frozen=True, slots=True)
class AcknowledgementAnswered:
    """The cloud received an acknowledgement; `problem` is the reason if it refused."""

    event_id: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process of a member on this machine has ended; `member` is its last heartbeat."""

    member: Member


SpotWatcherEvent = Member | Drain | Tick | WatchStarted | MetadataAnswered | AcknowledgementAnswered | ProcessEnded


@dataclass(frozen=True, slots=True)
class AskCloud:
    """Query the machine's metadata at that time; `MetadataAnswered` follows, also on failure."""

    at_s: float


@dataclass(frozen=True, slots=True)
class PublishNotice:
    """Notify a worker of its deadline; `again` where it was notified before and does not react."""

    notice: Drain
    again: bool = False


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Report an interruption to the migration planner; `again` where the report was published before."""

    report: InterruptionReported
    again: bool = False


@dataclass(frozen=True, slots=True)
class AnnounceLoss:
    """Announce a member's loss in its place, so that the others need not wait for its timeout."""

    member: Member


@dataclass(frozen=True, slots=True)
class AcknowledgeEvent:
    """Let the cloud begin the event; `AcknowledgementAnswered` follows."""

    event_id: str


@dataclass(frozen=True, slots=True)
class AnswerOperator:
    """Reply to a request for a drain."""

    reply: DrainReply


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Log why the metadata cannot be read; `None` once it can be read again."""

    problem: str | None


SpotWatcherCommand = (
    AskCloud | PublishNotice | PublishReport | AnnounceLoss | AcknowledgeEvent | AnswerOperator | ReportProblem
)
