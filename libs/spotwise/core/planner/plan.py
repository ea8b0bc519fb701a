"""A planner's plan, as it is kept in the store before anyone acts on it."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.migration.interruption.arrangement import Arrangement


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """What happens to one attempt; `target_id` is empty until its copy is about to start, since loads change."""

    arrangement: Arrangement
    target_id: str = ""


@dataclass(frozen=True, slots=True)
class PlannedLeave:
    """A worker that leaves, until when, and what happens to its requests; by sequence id."""

    worker_id: str
    incarnation: int
    deadline_s: float
    requests: tuple[PlannedRequest, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a change; `term` is the planner's, `version` counts its plans of that term."""

    term: int
    change: int
    version: int
    leaves: tuple[PlannedLeave, ...] = ()
