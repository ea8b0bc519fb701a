"""What the spot watcher's role hears and says, beside the messages of the mesh.

Law: events are in the past tense, commands in the imperative; a command's performer answers by an event or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import Drain, DrainReply, InterruptionReported, Member, Tick
from spotwise.core.spot.signs import MetadataAnswered

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WatchStarted:
    """There is a cloud to ask, once in `poll_s` where it answers."""

    cloud: str
    poll_s: float


@dataclass(frozen=True, slots=True)
class AcknowledgementAnswered:
    """The cloud was told that an event may begin; `problem` says why it did not take that, if it did not."""

    event_id: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process of a member on this machine is no more; `member` is its last heartbeat."""

    member: Member


SpotWatcherEvent = Member | Drain | Tick | WatchStarted | MetadataAnswered | AcknowledgementAnswered | ProcessEnded

# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskCloud:
    """Ask for the machine's metadata at that time; `MetadataAnswered` follows, whatever comes of it."""

    at_s: float


@dataclass(frozen=True, slots=True)
class PublishNotice:
    """Tell a worker when it must be gone; `again` where it was told that already and does not act on it."""

    notice: Drain
    again: bool = False


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Tell whoever plans."""

    report: InterruptionReported


@dataclass(frozen=True, slots=True)
class AnnounceLoss:
    """Say in a member's place that it is lost, to all who hear its heartbeats: they need not wait for its silence."""

    member: Member


@dataclass(frozen=True, slots=True)
class AcknowledgeEvent:
    """Tell the cloud that the event may begin; `AcknowledgementAnswered` follows."""

    event_id: str


@dataclass(frozen=True, slots=True)
class AnswerOperator:
    """Answer who asked for a drain."""

    reply: DrainReply


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Say in the log why the metadata cannot be read; `None`: that it can be again."""

    problem: str | None


SpotWatcherCommand = (
    AskCloud | PublishNotice | PublishReport | AnnounceLoss | AcknowledgeEvent | AnswerOperator | ReportProblem
)
