"""What the machine of fleet changes hears and says: events in the past tense, commands in the imperative."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceNoticed:
    """The cloud will take an instance; said again where the deadline moves.

    Attributes:
        instance: its id.
        deadline_s: when it goes, absolute.
    """

    instance: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class NoticeWithdrawn:
    """The cloud will not take it after all."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """An instance is gone, after its notice or without one."""

    instance: str


@dataclass(frozen=True, slots=True)
class InstanceAcquired:
    """An instance is ours.

    Attributes:
        instance: its id.
        ready_s: when it will have started, absolute.
    """

    instance: str
    ready_s: float


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """Another configuration may fit the load better."""


@dataclass(frozen=True, slots=True)
class ChangeExpected:
    """A change under way has been planned.

    Attributes:
        change: its number.
        end_s: when it will have ended, absolute.
    """

    change: int
    end_s: float


@dataclass(frozen=True, slots=True)
class ChangeEnded:
    """A change under way has ended; also one that was to be abandoned.

    Attributes:
        change: its number.
        done: whether the new configuration stands. If not, what the change was for is still to be done.
    """

    change: int
    done: bool


@dataclass(frozen=True, slots=True)
class FleetTick:
    """Time has passed."""


FleetEvent = (
    InstanceNoticed
    | NoticeWithdrawn
    | InstanceLost
    | InstanceAcquired
    | LoadChanged
    | ChangeExpected
    | ChangeEnded
    | FleetTick
)


@dataclass(frozen=True, slots=True)
class Leaving:
    """An instance that a change is to do without.

    Attributes:
        instance: its id.
        deadline_s: until when it can send, absolute.
        lost: whether it is gone, so that nothing can be had from it.
    """

    instance: str
    deadline_s: float
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Joining:
    """An instance that a change may use.

    Attributes:
        instance: its id.
        ready_s: from when on, absolute.
    """

    instance: str
    ready_s: float


@dataclass(frozen=True, slots=True)
class BeginChange:
    """Choose a configuration, map, plan, arrange and carry out; answered by `ChangeEnded`.

    Attributes:
        change: its number; from 1, each once.
        leaving: by deadline.
        joining: in the order in which they were acquired.
    """

    change: int
    leaving: tuple[Leaving, ...] = ()
    joining: tuple[Joining, ...] = ()


@dataclass(frozen=True, slots=True)
class AbandonChange:
    """Stop a change as soon as the fleet is whole again; answered by `ChangeEnded`, done or not."""

    change: int


@dataclass(frozen=True, slots=True)
class MoveDeadline:
    """An instance that leaves with the change under way goes at another time: arrange its requests again."""

    change: int
    instance: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class DropKv:
    """KV of an instance is gone: its requests go on from their committed tokens, computed elsewhere."""

    instance: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `FleetTick` then, absolute; an earlier order is void."""

    at_s: float


FleetCommand = BeginChange | AbandonChange | MoveDeadline | DropKv | WakeAt
