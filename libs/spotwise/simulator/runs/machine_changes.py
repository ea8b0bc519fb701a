"""Machines that come and go in the course of a run: when, and which, from counts of a cluster's kinds. A machine under notice
takes nothing new and is gone at its end; one that fails is gone at once; one that joins is new."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict

from spotwise.files.spot_traces import SpotTrace
from spotwise.files.tables import KNOWN_KEYS
from spotwise.simulator.runs.clusters import Cluster
from spotwise.simulator.runs.own_machines import OwnMachine, require_hand_overs
from spotwise.simulator.world.world import machine_ids


class MachineChangeKind(StrEnum):
    """What happens to machines."""

    NOTICE = "notice"  #: they get notice, and are gone when it is over
    FAIL = "fail"  #: they are gone at once
    JOIN = "join"  #: new ones are there


#: Ids of machines that join begin with it: they sort behind those that are there at the start.
_JOINED = "n"


@dataclass(frozen=True, slots=True)
class MachineChange:
    """Something that happens to machines at a time, one of the tables `[[events]]` of a cluster file.

    Attributes:
        at_s: seconds from the start.
        machines: how many.
        of: name of their kind; `None`: of any, the last of the cluster first. New machines are of the last group of it.
        notice_s: from a notice to the end.
        for_s: stay of new machines, the last `notice_s` of it under notice; `None`: to the end.
    """

    __pydantic_config__: ClassVar[ConfigDict] = KNOWN_KEYS

    at_s: float
    kind: MachineChangeKind
    machines: int
    of: str | None = None
    notice_s: float = 30.0
    for_s: float | None = None

    def __post_init__(self) -> None:
        if not all(0.0 <= seconds < math.inf for seconds in (self.at_s, self.notice_s, self.for_s or 0.0)):
            raise ValueError("times of machines that come or go are at least 0 and finite")
        if self.for_s is not None and self.kind is not MachineChangeKind.JOIN:
            raise ValueError("for_s is how long machines stay that join")
        if self.machines < 1:
            raise ValueError("at least one machine comes or goes")


@dataclass(slots=True)
class MachineLife:
    """A machine's stay.

    Attributes:
        group: its index among the cluster's groups.
        noticed_s, gone_s: `None` for a machine that stays; both alike for one that fails.
    """

    machine_id: str
    group: int
    from_s: float = 0.0
    noticed_s: float | None = None
    gone_s: float | None = None

    @property
    def joins(self) -> bool:
        """Whether it comes in the course of the run."""
        return self.machine_id.startswith(_JOINED)

    def until_s(self, end_s: float) -> float:
        """Return its seconds up to a time."""
        return max(0.0, (end_s if self.gone_s is None else min(self.gone_s, end_s)) - self.from_s)


def lives_of(cluster: Cluster, changes: Sequence[MachineChange]) -> list[MachineLife]:
    """Return all machines of a run in order of their ids, which are those of the world at the start.

    Raises:
        ValueError: more machines leave than there are, all leave, a kind is unknown, or machines under notice have no link by
            which KV could leave.
    """
    groups = [index for index, group in enumerate(cluster.groups) for _ in range(group.count)]
    lives = [MachineLife(id_, group) for id_, group in zip(machine_ids(len(groups)), groups, strict=True)]
    for change in sorted(changes, key=lambda each: each.at_s):
        among = _groups(cluster, change)
        if change.kind is MachineChangeKind.JOIN:
            noticed_s, gone_s = _stay_of(change)
            ids = (f"{_JOINED}{len(lives) + number}" for number in range(change.machines))
            lives += [MachineLife(id_, among[-1], change.at_s, noticed_s, gone_s) for id_ in ids]
            continue
        here = [life for life in lives if life.group in among and life.noticed_s is None]
        if change.machines > len(here):
            of = "" if change.of is None else f" of {change.of}"
            raise ValueError(f"{change.machines} machines{of} leave at {change.at_s:g} s, and {len(here)} are there")
        for life in here[-change.machines :]:
            life.noticed_s = change.at_s
            life.gone_s = change.at_s + (change.notice_s if change.kind is MachineChangeKind.NOTICE else 0.0)
    if all(life.gone_s is not None for life in lives):
        raise ValueError(f"all {len(lives)} machines leave; at least one must stay")
    if own := _noticed_kinds(cluster, lives):
        require_hand_overs(own)
    return lives


def changes_of(trace: SpotTrace, of: str, notice_s: float) -> tuple[int, tuple[MachineChange, ...]]:
    """Return how many machines of a kind are there at the start of a recording of instances, and how they come and go.

    Args:
        notice_s: notice of instances that leave, where the recording does not say; 0: they fail. Their notice comes
            before they are gone, at their start at the earliest.
    """
    first, changes = 0, []
    for life in trace.lives():
        own_notice_s = notice_s if life.notice_s is None else life.notice_s
        stay_s = None if life.to_s is None else life.to_s - life.from_s
        before_s = own_notice_s if stay_s is None else min(own_notice_s, stay_s)
        if life.from_s > 0.0:
            changes.append(MachineChange(life.from_s, MachineChangeKind.JOIN, 1, of, before_s, stay_s))
            continue
        first += 1
        if life.to_s is not None:
            changes.append(MachineChange(life.to_s - before_s, MachineChangeKind.NOTICE, 1, of, before_s))
    return first, tuple(sorted(changes, key=lambda change: change.at_s))


def _stay_of(change: MachineChange) -> tuple[float | None, float | None]:
    """Return when machines that join get notice, and when they are gone."""
    if change.for_s is None:
        return None, None
    gone_s = change.at_s + change.for_s
    return max(change.at_s, gone_s - change.notice_s), gone_s


def _groups(cluster: Cluster, change: MachineChange) -> list[int]:
    found = [index for index, group in enumerate(cluster.groups) if change.of in (None, group.kind.name)]
    if not found:
        names = ", ".join(dict.fromkeys(group.kind.name for group in cluster.groups))
        raise ValueError(f"no machines are named {change.of!r}; there are {names}")
    return found


def _noticed_kinds(cluster: Cluster, lives: Iterable[MachineLife]) -> list[OwnMachine]:
    """The own kinds of machine, where some have notice in which their KV may move to others."""
    moves = any(life.noticed_s is not None and life.gone_s != life.noticed_s for life in lives)
    return cluster.own_kinds if moves else []
