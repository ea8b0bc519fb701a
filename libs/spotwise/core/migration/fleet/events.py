"""Events and commands of the fleet-change machine; times are absolute, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceNoticed:
    """The cloud will reclaim an instance at `deadline_s`; repeated where the deadline moves."""

    instance: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class NoticeWithdrawn:
    """The cloud has withdrawn its notice."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """An instance is gone, with or without notice."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceReturned:
    """An instance that was lost is there after all: it had fallen silent."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceAcquired:
    """An instance was acquired; it will have started at `ready_s`."""

    instance: str
    ready_s: float


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """Another configuration may fit the load better."""


@dataclass(frozen=True, slots=True)
class ChangeExpected:
    """The current change was planned; it will have ended at `end_s`."""

    change: int
    end_s: float


@dataclass(frozen=True, slots=True)
class ChangeEnded:
    """The current change has ended, also after `AbandonChange`; unless `done`, its reasons remain to be handled."""

    change: int
    done: bool


@dataclass(frozen=True, slots=True)
class FleetTick:
    """Time has passed."""


FleetChangeEvent = (
    InstanceNoticed
    | NoticeWithdrawn
    | InstanceLost
    | InstanceReturned
    | InstanceAcquired
    | LoadChanged
    | ChangeExpected
    | ChangeEnded
    | FleetTick
)


@dataclass(frozen=True, slots=True)
class Leaving:
    """An instance that a change is to do without; it can send until `deadline_s`, unless it is `lost` already."""

    instance: str
    deadline_s: float
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """An instance that a change may use from `ready_s` on."""

    instance: str
    ready_s: float


@dataclass(frozen=True, slots=True)
class BeginChange:
    """Choose a configuration, map, plan, arrange and execute; answered by `ChangeEnded`.
    `change` numbers from 1, each once; `leaving` by deadline; `joining` in the order of acquisition.
    """

    change: int
    leaving: tuple[Leaving, ...] = ()
    joining: tuple[Joining, ...] = ()


@dataclass(frozen=True, slots=True)
class AbandonChange:
    """Stop a change as soon as the fleet is consistent; answered by `ChangeEnded`, done or not."""

    change: int


@dataclass(frozen=True, slots=True)
class MoveDeadline:
    """The deadline of an instance that leaves with the current change has moved: rearrange its requests."""

    change: int
    instance: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class DropKv:
    """KV of an instance is lost: its requests resume on other instances from their committed tokens."""

    instance: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `FleetTick` at that time; replaces earlier orders."""

    at_s: float


FleetCommand = BeginChange | AbandonChange | MoveDeadline | DropKv | WakeAt
