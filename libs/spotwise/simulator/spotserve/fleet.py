"""The trace's instances as a serving system sees them: announced, ready, notified, preempted. Every event is known `grace_s`
ahead, joins included (SpotServe's artifact); two stays of one node are two instances, each billed for its time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf

from spotwise.core.messages.fleet import Market
from spotwise.core.migration.deployment import Instance
from spotwise.files.spot_traces import SpotTrace


class Stage(IntEnum):
    """Stage of an instance's life; at one time in this order."""

    GONE = 0
    NOTICED = 1
    ANNOUNCED = 2
    READY = 3


@dataclass(frozen=True, slots=True)
class PaidLife:
    """A billed stay of a node as an instance, until the preemption or the end of the simulation."""

    node: str
    instance: str
    market: Market
    from_s: float
    to_s: float

    def seconds(self, until_s: float = inf) -> float:
        """Return its seconds before a time."""
        return max(0.0, min(self.to_s, until_s) - self.from_s)


@dataclass(slots=True, eq=False)
class SpotInstance:
    """A spot or on-demand instance.

    Attributes:
        node: its name in the trace.
        id: the same; of a node's later stays with a number.
        market: spot or on-demand.
        ready_s: when it joins.
        leaves_s: preemption time, hidden from the system until the notice; `None` if it stays.
        deadline_s: the same, once notified.
        ready: the instance has joined.
        gone_s: actual preemption time.
    """

    node: str
    id: str
    market: Market
    ready_s: float
    leaves_s: float | None = None
    deadline_s: float | None = None
    ready: bool = False
    gone_s: float | None = None

    @property
    def is_here(self) -> bool:
        """Whether it is up, notified or not."""
        return self.ready and self.gone_s is None

    @property
    def stays(self) -> bool:
        """Whether it is up or will be, and is not notified."""
        return self.gone_s is None and self.deadline_s is None


@dataclass(frozen=True, slots=True)
class InstanceEvent:
    """A stage that some instances reach at one time."""

    time_s: float
    stage: Stage
    machines: tuple[SpotInstance, ...]


class Fleet:
    """All announced instances in order; `machines` are those not gone, by id."""

    def __init__(self, devices: int) -> None:
        self.machines: dict[str, SpotInstance] = {}
        self._devices = devices
        self._gone: list[SpotInstance] = []

    def apply(self, event: InstanceEvent) -> None:
        """Apply an event to the fleet."""
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
        """Return the instances that are up without a notice."""
        return tuple(machine for machine in self.machines.values() if machine.is_here and machine.stays)

    def instances(self) -> tuple[Instance, ...]:
        """Return the instances that are up, as planning sees them."""
        return tuple(
            Instance(machine.id, self._devices, machine.deadline_s)
            for machine in self.machines.values()
            if machine.ready
        )

    def paid_lives(self, end_s: float) -> tuple[PaidLife, ...]:
        """Return the stays up to the end of the simulation, ended ones first."""
        lives = [(machine, machine.gone_s) for machine in self._gone if machine.ready]
        lives += [(machine, end_s) for machine in self.machines.values() if machine.ready]
        return tuple(
            PaidLife(machine.node, machine.id, machine.market, machine.ready_s, end_s if gone_s is None else gone_s)
            for machine, gone_s in lives
        )


def fleet_events(
    trace: SpotTrace, grace_s: float, announced_s: float, on_demand: frozenset[str]
) -> list[InstanceEvent]:
    """Return the events of a trace, by time.

    Args:
        grace_s: from a notice to the preemption, where the trace does not say.
        announced_s: from the announcement of an instance until it is up.
        on_demand: nodes of the trace that are not preemptible; only the trace releases them.
    """
    moments: dict[tuple[float, Stage], list[SpotInstance]] = {}
    stays: dict[str, int] = {}
    for life in sorted(trace.lives(), key=lambda life: life.from_s):
        if life.to_s is not None and life.to_s <= life.from_s:
            continue  # joined and left between two polls
        stay = stays[life.node] = stays.get(life.node, 0) + 1
        market = Market.ON_DEMAND if life.node in on_demand else Market.SPOT
        name = life.node if stay == 1 else f"{life.node}#{stay}"
        machine = SpotInstance(life.node, name, market, life.from_s, life.to_s)
        times = [(max(0.0, life.from_s - announced_s), Stage.ANNOUNCED), (life.from_s, Stage.READY)]
        if life.to_s is not None:
            notice_s = grace_s if life.notice_s is None else life.notice_s
            times += [(max(life.from_s, life.to_s - notice_s), Stage.NOTICED), (life.to_s, Stage.GONE)]
        for moment in times:
            moments.setdefault(moment, []).append(machine)
    return [
        InstanceEvent(*moment, tuple(machines))
        for moment, machines in sorted(moments.items(), key=lambda item: item[0])
    ]
