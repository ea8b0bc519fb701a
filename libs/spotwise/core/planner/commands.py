"""Events and commands of the planner's role, beside the messages of the mesh."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.messages import mesh as m
from spotwise.core.planner.plan import Plan, ReshapeStage


@dataclass(frozen=True, slots=True)
class TermHeld:
    """The lease is this planner's until Unix time `until_s`; `plan`: the last one stored, where the term has just begun."""

    term: int
    until_s: float
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class TermLost:
    """Another planner has the lease, or the store does not answer."""


@dataclass(frozen=True, slots=True)
class PlanStored:
    """The plan of this version is in the store, or was refused there because its term is over."""

    version: int
    stored: bool = True


@dataclass(frozen=True, slots=True)
class ReshapeRequested:
    """An operator orders a re-shape; `AnswerReshape` with this `number` answers it, where the planner has the lease.

    Attributes:
        device_ids: those that may have positions; `None`: all.
    """

    number: int
    order: m.ReshapeMesh
    device_ids: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class FleetAsked:
    """An operator asks for the fleet; `AnswerFleet` with this `number` answers, where the planner has the lease."""

    number: int


PlannerEvent = (
    m.Member
    | m.LoadReported
    | m.FleetReported
    | m.InterruptionReported
    | m.WorkerSurveyed
    | m.DeviceSurveyed
    | m.GroupFormed
    | m.MoveEnded
    | m.Tick
    | TermHeld
    | TermLost
    | PlanStored
    | ReshapeRequested
    | FleetAsked
)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Write the plan, unless another planner has the lease; `PlanStored` follows where the store answers."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class ReportChange:
    """Log that a change of the fleet began, or ended (`done`) or was abandoned."""

    change: int
    workers: tuple[str, ...]
    outcome: str


@dataclass(frozen=True, slots=True)
class AnswerReshape:
    """Answer the `ReshapeRequested` of this number."""

    number: int
    reply: m.ReshapeReply


@dataclass(frozen=True, slots=True)
class PublishDrain:
    """Publish the drain of a worker that retires, to all workers and devices."""

    drain: m.Drain


@dataclass(frozen=True, slots=True)
class ReportReshape:
    """Log that a re-shape began (`FORMING`), that its groups serve (`MOVING`), or how it ended, `seconds` after it began."""

    change: int
    config: str
    stage: ReshapeStage
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PublishFleetOrder:
    """Publish what is to be bought and given back, to the watcher with the provider."""

    order: m.FleetOrder


@dataclass(frozen=True, slots=True)
class AnswerFleet:
    """Answer the `FleetAsked` of this number."""

    number: int
    view: m.FleetView


PlannerCommand = (
    m.Send | StorePlan | ReportChange | AnswerReshape | PublishDrain | ReportReshape | PublishFleetOrder | AnswerFleet
)
