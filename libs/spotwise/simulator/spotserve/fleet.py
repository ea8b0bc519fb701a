"""The instances of a trace as a serving system sees them: announced, ready, noticed, gone.

Every event of a trace is known `grace_s` before it happens, arrivals included (SpotServe's artifact). An instance is paid for
while it is there; two stays of one node are two instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from math import inf

from spotwise.core.migration.deployment import Instance
from spotwise.simulator.spotserve.traces import SpotTrace


class SpotMarket(StrEnum):
    """How an instance was bought."""

    SPOT = "spot"
    ON_DEMAND = "on_demand"


class Stage(IntEnum):
    """What happens to an instance; at one moment in this order."""

    GONE = 0
    NOTICED = 1
    ANNOUNCED = 2
    READY = 3


@dataclass(frozen=True, slots=True)
class PaidLife:
    """A stay that is paid for, until the instance was gone or the world ended."""

    instance: str
    market: SpotMarket
    from_s: float
    to_s: float

    def seconds(self, until_s: float = inf) -> float:
        """Return how long it was there before a time."""
        return max(0.0, min(self.to_s, until_s) - self.from_s)


@dataclass(slots=True, eq=False)
class SpotInstance:
    """An instance in the world.

    Attributes:
        id: its name; of a node's later stays with a number.
        market: how it was bought.
        ready_s: when it is there.
        leaves_s: when it will be gone, unknown to the system before the notice; `None` if it stays.
        deadline_s: the same, once the notice has come.
        ready: whether it has been there.
        gone_s: when it was gone.
    """

    id: str
    market: SpotMarket
    ready_s: float
    leaves_s: float | None = None
    deadline_s: float | None = None
    ready: bool = False
    gone_s: float | None = None

    @property
    def is_here(self) -> bool:
        """Whether it is there, under notice or not."""
        return self.ready and self.gone_s is None

    @property
    def stays(self) -> bool:
        """Whether it is there or will be, and has no notice."""
        return self.gone_s is None and self.deadline_s is None


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """What happens to some instances at one time."""

    time_s: float
    stage: Stage
    machines: tuple[SpotInstance, ...]


class Fleet:
    """All instances that are known, in the order in which they were announced.

    Attributes:
        machines: the instances that are not gone, by id.
    """

    def __init__(self, devices: int) -> None:
        self.machines: dict[str, SpotInstance] = {}
        self._devices = devices
        self._gone: list[SpotInstance] = []

    def apply(self, event: InstanceEvent) -> None:
        """Apply an event."""
        for machine in event.machines:
            if event.stage is Stage.ANNOUNCED:
                self.machines[machine.id] = machine
            elif event.stage is Stage.READY:
                machine.ready = True
            elif event.stage is Stage.NOTICED:
                machine.deadline_s = machine.leaves_s
            else:
                machine.gone_s = event.time_s
                self.machines.pop(machine.id, None)
                self._gone.append(machine)

    def here(self) -> tuple[SpotInstance, ...]:
        """Return the instances that are there without notice."""
        return tuple(machine for machine in self.machines.values() if machine.is_here and machine.stays)

    def instances(self) -> tuple[Instance, ...]:
        """Return the instances that are there as planning sees them."""
        return tuple(
            Instance(machine.id, self._devices, machine.deadline_s)
            for machine in self.machines.values()
            if machine.ready
        )

    def paid_lives(self, end_s: float) -> tuple[PaidLife, ...]:
        """Return the stays up to the end of the world, ended ones first."""
        lives = [(machine, machine.gone_s) for machine in self._gone if machine.ready]
        lives += [(machine, end_s) for machine in self.machines.values() if machine.ready]
        return tuple(
            PaidLife(machine.id, machine.market, machine.ready_s, end_s if gone_s is None else gone_s)
            for machine, gone_s in lives
        )


def fleet_events(
    trace: SpotTrace, grace_s: float, announced_s: float, on_demand: frozenset[str]
) -> list[InstanceEvent]:
    """Return the events of a trace, by time.

    Args:
        trace: which instances come and go.
        grace_s: from a notice to the end.
        announced_s: before an instance is there, that it is known.
        on_demand: nodes of the trace that are not preemptible; it is the trace that releases them.
    """
    moments: dict[tuple[float, Stage], list[SpotInstance]] = {}
    stays: dict[str, int] = {}
    for life in sorted(trace.lives(), key=lambda life: life.from_s):
        if life.to_s is not None and life.to_s <= life.from_s:
            continue  # came and went between two polls
        stay = stays[life.node] = stays.get(life.node, 0) + 1
        market = SpotMarket.ON_DEMAND if life.node in on_demand else SpotMarket.SPOT
        machine = SpotInstance(life.node if stay == 1 else f"{life.node}#{stay}", market, life.from_s, life.to_s)
        times = [(max(0.0, life.from_s - announced_s), Stage.ANNOUNCED), (life.from_s, Stage.READY)]
        if life.to_s is not None:
            times += [(max(life.from_s, life.to_s - grace_s), Stage.NOTICED), (life.to_s, Stage.GONE)]
        for moment in times:
            moments.setdefault(moment, []).append(machine)
    return [
        InstanceEvent(*moment, tuple(machines))
        for moment, machines in sorted(moments.items(), key=lambda item: item[0])
    ]
