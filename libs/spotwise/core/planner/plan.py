"""A planner's plan, as it is kept in the store before anyone acts on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from spotwise.core.messages.reshape import DeviceGroup, GroupFormed, PlannedWeights
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


class ReshapeStage(StrEnum):
    """How far a re-shape is."""

    FORMING = "forming"  #: new groups are formed, and the old ones serve on
    MOVING = "moving"  #: the new groups serve, and requests move to them
    DONE = "done"
    ABANDONED = "abandoned"  #: the old groups serve on, and new ones leave

    @property
    def is_over(self) -> bool:
        """Whether the re-shape has ended."""
        return self in (ReshapeStage.DONE, ReshapeStage.ABANDONED)


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """The groups of devices that are to serve, by the last re-shape.

    Attributes:
        change: number of the re-shape; `config` is the configuration that it was ordered with, `D,P,M`.
        groups: those that are to be.
        new_ids: workers of `groups` that the re-shape forms.
        retiring: groups that are not to be any more.
        began_s, ended_s: Unix time of the re-shape's beginning and end; `None` before its end.
        form_until_s: Unix time at which new groups that do not serve yet abandon it.
        migration_s: seconds that their weights travel by the plan of the migration.
        served_s: Unix time at which all new groups served.
        moved, given_back: requests of retiring workers, so far.
        pause_s, longest_pause_s: mean and longest pause of the requests that moved.
        reason: why it was abandoned.
        cause: why the planner began it; empty: an operator ordered it.
        stopgap_ids: workers that serve only until groups with too few devices are whole again.
        missed_ids: workers that drain or drained since a device has to leave: their groups are to be all the same.
        left_ids: workers of `retiring` that were to leave before: they do so at once, and do not come back where this change is
            abandoned.
        weights: weights that devices of new groups get from others, in the order of the plan of the migration.
        fetched_bytes, unplanned_bytes, read_bytes: bytes of weights, as the new groups reported (`GroupFormed`).
    """

    change: int
    config: str
    stage: ReshapeStage
    groups: tuple[DeviceGroup, ...]
    new_ids: tuple[str, ...]
    retiring: tuple[DeviceGroup, ...]
    began_s: float
    form_until_s: float
    ended_s: float | None = None
    migration_s: float = 0.0
    served_s: float | None = None
    moved: int = 0
    given_back: int = 0
    pause_s: float = 0.0
    longest_pause_s: float = 0.0
    reason: str = ""
    cause: str = ""
    stopgap_ids: tuple[str, ...] = ()
    missed_ids: tuple[str, ...] = ()
    left_ids: tuple[str, ...] = ()
    weights: tuple[PlannedWeights, ...] = ()
    fetched_bytes: int = 0
    unplanned_bytes: int = 0
    read_bytes: int = 0

    @property
    def new(self) -> tuple[DeviceGroup, ...]:
        """The groups that the re-shape forms."""
        return tuple(group for group in self.groups if group.worker_id in self.new_ids)

    @property
    def retiring_ids(self) -> frozenset[str]:
        """The workers that are not to be any more."""
        return frozenset(group.worker_id for group in self.retiring)

    @property
    def is_forming(self) -> bool:
        """Whether new groups do not serve yet."""
        return self.stage is ReshapeStage.FORMING

    @property
    def leaving_ids(self) -> frozenset[str]:
        """The workers that are to hand over what they have, now."""
        return frozenset(self.left_ids) if self.is_forming else self.retiring_ids

    def with_move(self, pause_s: float) -> PlannedDeployment:
        """Return it with one more request that moved, after a pause."""
        moved = self.moved + 1
        return replace(
            self,
            moved=moved,
            pause_s=self.pause_s + (pause_s - self.pause_s) / moved,
            longest_pause_s=max(self.longest_pause_s, pause_s),
        )

    def with_weights(self, formed: GroupFormed) -> PlannedDeployment:
        """Return it with the weights that the devices of one of its new groups got; of any other group, as it is."""
        if formed.change != self.change or formed.worker_id not in self.new_ids:
            return self
        return replace(
            self,
            fetched_bytes=self.fetched_bytes + formed.fetched_bytes,
            unplanned_bytes=self.unplanned_bytes + formed.unplanned_bytes,
            read_bytes=self.read_bytes + formed.read_bytes,
        )

    def orders_the_same(self, other: PlannedDeployment | None) -> bool:
        """Tell whether the orders that follow from another one are those of this one."""
        return other is not None and (self.change, self.stage, self.groups, self.retiring) == (
            *(other.change, other.stage, other.groups, other.retiring),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a change; `term` is the planner's, `version` counts its plans of that term. `deployment`: of the last
    re-shape, also after its end; `None` where there was none.
    """

    term: int
    change: int
    version: int
    leaves: tuple[PlannedLeave, ...] = ()
    deployment: PlannedDeployment | None = None
