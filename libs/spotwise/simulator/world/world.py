"""A cluster that serves a trace, in simulated time.

Law: one `SchedulerRole` and as many `WorkerRole`s as there are machines, the classes of the live mesh, decide everything; this
world carries their messages, takes the time that their commands take, and counts. Nobody dies in it and no message is lost, so
leases and time-outs never run out (`PATIENT`), and workers need no ticks. One machine alone may do without a scheduler
(`front_door.py`).

A heartbeat goes out at a multiple of the period after something happened on a machine, or when it has computed prompts, and
only if its load changed since the last: the scheduler's view is a report and what was ordered since, and the same report again
changes neither.

Source: an event-driven simulator of the cluster, Splitwise section 5.

Invariants: every request that arrives ends, once, and at the end no KV block is held; the next arrival is read when the one
before it has come, so memory holds what is live and what is counted, whatever the length of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spotwise.core import messages as m
from spotwise.core.scheduler import SchedulerEvent, SchedulerRole
from spotwise.simulator.world.client import Client, SimulationError
from spotwise.simulator.world.control_plane import ControlPlane
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.front_door import FrontDoor
from spotwise.simulator.world.machine import Machine
from spotwise.simulator.world.network import Network
from spotwise.simulator.world.observation import Arrival, Observer
from spotwise.simulator.world.results import WorldResult
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.surroundings import Surroundings

_SCHEDULER = "scheduler"
_CLIENT = "client"


def machine_ids(count: int) -> list[str]:
    """Return the ids of so many machines, in their order, which is that of the ids, too."""
    digits = len(str(count - 1))
    return [f"m{number:0{digits}}" for number in range(count)]


class World:
    """Machines, their scheduler and their clients.

    Args:
        machines: what there is; the cluster does not change.
        settings: how the world behaves.
        observer: hears of every request and iteration.
    """

    def __init__(self, machines: Sequence[SimulatedMachine], settings: WorldSettings, observer: Observer) -> None:
        if not machines:
            raise ValueError("a world needs a machine")
        self._settings = settings
        self._queue = EventQueue()
        self._control = ControlPlane(self._queue, settings.control_latency_s)
        self._scheduler = _scheduler(machines, settings)
        self._control.open_inbox(_SCHEDULER, self._tell_scheduler)
        self._client = Client(_CLIENT, _SCHEDULER, self._queue, self._control, observer, settings)
        network = Network(self._queue, settings.private_link_bytes_per_s)
        around = Surroundings(self._queue, network, self._control, self._client, observer, settings, _SCHEDULER)
        self._machines: dict[str, Machine] = {}
        for number, (machine_id, kind) in enumerate(zip(machine_ids(len(machines)), machines, strict=True)):
            machine = Machine(machine_id, kind, number / len(machines), around)
            self._machines[machine_id] = around.machines[machine_id] = machine
        self._arrivals: Iterator[Arrival] = iter(())
        self._awaited: Arrival | None = None

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._queue.now

    def run(self, arrivals: Iterable[Arrival]) -> WorldResult:
        """Serve a trace to its last token. A world is run once.

        Args:
            arrivals: in order of time; read one by one.

        Raises:
            SimulationError: a request was neither answered nor refused, KV blocks were left behind, or the mesh broke another
                promise.
            ValueError: arrivals go back in time.
        """
        for machine in self._machines.values():
            machine.beat()
        self._arrivals = iter(arrivals)
        self._await_next()
        self._tick()
        self._queue.run()
        client = self._client
        if client.live:
            raise SimulationError(f"nothing happens any more, and {client.live} requests wait for tokens")
        held = sum(machine.held_blocks for machine in self._machines.values())
        if held:
            raise SimulationError(f"nothing happens any more, and {held} KV blocks are held for nobody")
        return self.result()

    def result(self) -> WorldResult:
        """Return what is known; of a run that an observer ended by an exception, what was known then."""
        client = self._client
        return WorldResult(
            ended_s=client.ended_s,
            completed=client.completed,
            failed=client.failed,
            machines=tuple(machine.finish() for machine in self._machines.values()),
        )

    def _await_next(self) -> None:
        self._awaited = next(self._arrivals, None)
        if self._awaited is not None:
            self._queue.at(self._awaited.at_s, self._arrive, self._awaited)

    def _arrive(self, arrival: Arrival) -> None:
        self._client.ask(arrival)
        self._await_next()

    def _tick(self, _: None = None) -> None:
        """Let the scheduler look at the time, as long as somebody waits or is still to come."""
        self._tell_scheduler(m.Tick())
        if self._client.live or self._awaited is not None:
            self._queue.at(self._queue.now + self._settings.tick_s, self._tick)

    def _tell_scheduler(self, event: SchedulerEvent) -> None:
        for command in self._scheduler.handle(event, self._queue.now):
            if isinstance(command, m.Send):
                self._control.send(command.recipient_id, command.message)


def _scheduler(machines: Sequence[SimulatedMachine], settings: WorldSettings) -> SchedulerRole | FrontDoor:
    if settings.through_scheduler:
        return SchedulerRole(_SCHEDULER, settings.limits, policy=settings.pools)
    if len(machines) > 1:
        raise ValueError("through_scheduler=False needs a world of one machine: nobody would choose between them")
    return FrontDoor(_SCHEDULER, _CLIENT, machine_ids(1)[0])
