"""Discrete-event simulation of a cluster (Splitwise, section 5) with the live mesh's `SchedulerRole` and a `WorkerRole` per
machine. The world carries messages and times commands; no message is lost, so time-outs never expire (`PATIENT`) and workers
need no ticks. In an elastic world the requests of a leaving machine are submitted again, or migrate with their KV."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.core.scheduler.role import SchedulerEvent, SchedulerRole
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequences.sequence import Sequence as HeldSequence
from spotwise.simulator.world.client import Client, SimulationError
from spotwise.simulator.world.departures import Departure, DepartureTotals
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.machine import Machine
from spotwise.simulator.world.network import ControlPlane, Network
from spotwise.simulator.world.observation import Arrival, MachineResult, Observer, WorldResult
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.surroundings import Surroundings

_SCHEDULER = "scheduler"
_CLIENT = "client"
_MIGRATION = "migration"
#: Simulated seconds in which nothing but ticks happens while requests wait, at most: longer than any of the mesh's waits.
_LONGEST_SILENCE_S = 3600.0


def machine_ids(count: int) -> list[str]:
    """Return the ids of so many machines, in ascending order."""
    digits = len(str(count - 1))
    return [f"m{number:0{digits}}" for number in range(count)]


class World:
    """Machines, their scheduler and their clients.

    Args:
        machines: at the start; an elastic world may begin without any.
        observer: receives every request and iteration as it ends.
        queue: the clock, where something beside the world uses it.
    """

    def __init__(
        self,
        machines: Sequence[SimulatedMachine],
        settings: WorldSettings,
        observer: Observer,
        queue: EventQueue | None = None,
    ) -> None:
        if not machines and not settings.elastic:
            raise ValueError("a world needs a machine")
        self._settings = settings
        self._queue = queue or EventQueue()
        self._control = ControlPlane(self._queue, settings.control_latency_s)
        self._scheduler = _scheduler(machines, settings)
        self._control.open_inbox(_SCHEDULER, self._scheduler_receives)
        self._control.open_inbox(_MIGRATION, self._migration_receives)
        self._client = Client(_CLIENT, _SCHEDULER, self._queue, self._control, observer, settings)
        network = Network(self._queue, settings.private_link_bytes_per_s)
        self._around = Surroundings(self._queue, network, self._control, self._client, observer, settings, _SCHEDULER)
        self._machines: dict[str, Machine] = {}
        self._kinds: dict[str, SimulatedMachine] = {}
        self._gone: list[MachineResult] = []
        self._departed = DepartureTotals()
        self._put_on: set[int] = set()  # requests whose KV was copied to another machine
        for number, (machine_id, kind) in enumerate(zip(machine_ids(len(machines)), machines, strict=True)):
            self._add(machine_id, kind, number / len(machines))
        self._arrivals: Iterator[Arrival] = iter(())
        self._awaited: Arrival | None = None
        self._ticks = False
        self._silent_s = 0.0

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._queue.now

    def run(self, arrivals: Iterable[Arrival]) -> WorldResult:
        """Serve a trace to its last token; once only.

        Args:
            arrivals: in order of time; read lazily.

        Raises:
            SimulationError: a request was neither answered nor rejected, KV blocks leaked, or another invariant of the mesh
                broke.
            ValueError: arrivals are out of order.
        """
        for machine in self._machines.values():
            machine.beat()
        self._arrivals = iter(arrivals)
        self._await_next()
        self._tick()
        self._queue.run()
        self.check_idle()
        return self.result()

    def check_idle(self) -> None:
        """Check that no request is live and no KV block held; raises SimulationError otherwise."""
        if self._client.live:
            raise SimulationError(f"nothing happens any more, and {self._client.live} requests wait for tokens")
        held = sum(machine.held_blocks for machine in self._machines.values())
        if held:
            raise SimulationError(f"nothing happens any more, and {held} KV blocks are held for no request")

    def result(self) -> WorldResult:
        """Return the totals; of a run that an observer ended by an exception, those up to then."""
        client = self._client
        return WorldResult(
            ended_s=client.ended_s,
            completed=client.completed,
            failed=client.failed,
            machines=(*self._gone, *(machine.finish() for machine in self._machines.values())),
            moved=self._departed.moved,
            recomputed=self._departed.recomputed,
            restarted=self._departed.restarted,
        )

    def notice_at(self, at_s: float, machine_id: str, notice_s: float) -> None:
        """Give a machine of an elastic world notice at a time: it takes nothing new then, and is gone `notice_s` later."""
        self._queue.at(at_s, self._notice, (machine_id, notice_s))

    def _notice(self, notice: tuple[str, float]) -> None:
        machine_id, notice_s = notice
        machine, deadline_s = self._machines[machine_id], self.now + notice_s
        machine.drain()
        Departure(
            machine,
            self._kinds[machine_id],
            deadline_s,
            self._queue,
            self._settings,
            self,
            lambda sequence: self.is_current(sequence),
            self._departed,
        ).arrange()
        self._queue.at(deadline_s, self._deadline_came, machine_id)

    def _deadline_came(self, machine_id: str) -> None:
        self._gone.append(self._machines[machine_id].finish())
        for sequence in self.leave(machine_id):
            self._departed.recomputed += 1
            self.submit_again(int(sequence.choice_id), sequence.output_tokens)

    def put_on(self, number: int) -> None:
        """Let a request that was taken off resume, with its KV, on the machine with most free blocks; prompt machines last."""
        ready = [each for each in self._machines.values() if each.state is m.MemberState.READY]
        if not ready:
            self._computed_again(number)
            return
        target = min(ready, key=lambda each: (each.home_pool is m.Pool.PROMPT, -each.free_blocks, each.id))
        self._put_on.add(number)
        self._place(number, target)

    def _computed_again(self, number: int) -> None:
        self._departed.moved -= 1
        self._departed.recomputed += 1
        self.submit_again(number, self._client.progress(str(number)).output_tokens)

    def _place(self, number: int, machine: Machine) -> None:
        handoff = self._client.move_attempt(number, machine.id)
        machine.receive(self._client.reservation(number, _MIGRATION))
        # after its record, which is loaded at this very moment
        self._queue.at(self.now, machine.receive, c.KvArrived(handoff, 0, 0.0, "simulated"))

    def submit(self, arrival: Arrival) -> int:
        """Submit a request now; return its number, which grows from 0."""
        number = self._client.submit(arrival)
        self._start_ticks()
        return number

    def is_current(self, sequence: HeldSequence) -> bool:
        """Whether a sequence is its request's last attempt, and not all its tokens are made."""
        return self._client.is_current(sequence.choice_id, sequence.epoch)

    def submit_again(self, number: int, output_tokens: int) -> None:
        """Resubmit a live request, whose prompt and so many output tokens are recomputed wherever the scheduler places it."""
        self._client.end_attempt(number, output_tokens)
        self._client.submit_again(number)

    def take_off(self, number: int, output_tokens: int) -> None:
        """End a live request's attempt; `join` or `submit_again` starts the next one."""
        self._client.end_attempt(number, output_tokens)

    def join(self, machine_id: str, kind: SimulatedMachine, moved: Iterable[int] = ()) -> Machine:
        """Add a machine, with the KV of requests taken off others."""
        machine = self._add(machine_id, kind, 0.0)
        for number in moved:
            self._place(number, machine)
        machine.beat()
        # the scheduler learns of it one message from now, and rejects until then what arrives another one later
        self._queue.at(self.now + 3 * self._settings.control_latency_s, self._client.retry_rejected)
        self._start_ticks()
        return machine

    def go_on(self, number: int, machine_id: str) -> None:
        """Let a request that was taken off go on, with its KV, on a machine that is here and has room for it."""
        self._place(number, self._machines[machine_id])

    def leave(self, machine_id: str) -> tuple[HeldSequence, ...]:
        """Remove a machine at once. Returns its sequences in the token phase with computed KV, which the caller resumes; all
        other requests that lost a worker are submitted again."""
        machine = self._machines.pop(machine_id)
        sequences = machine.leave()
        current = {int(s.choice_id): s for s in sequences if self.is_current(s)}
        kept = {number: s for number, s in current.items() if s.computed_tokens and s.decodes_here and s.output_tokens}
        known = {number: s.output_tokens for number, s in current.items()}
        for number, token_worker in self._client.worker_left(machine_id):
            if number in kept or self._has_kv(token_worker, number):
                continue
            self._departed.restarted += 1
            self.submit_again(number, known.get(number, self._client.progress(str(number)).output_tokens))
        return tuple(kept.values())

    def _has_kv(self, machine_id: str, number: int) -> bool:
        machine = self._machines.get(machine_id)
        held = () if machine is None else machine.sequences()
        return any(int(sequence.choice_id) == number and sequence.computed_tokens for sequence in held)

    def _add(self, machine_id: str, kind: SimulatedMachine, phase: float) -> Machine:
        machine = Machine(machine_id, kind, phase, self._around)
        self._machines[machine_id] = self._around.machines[machine_id] = machine
        self._kinds[machine_id] = kind
        return machine

    def _migration_receives(self, answer: m.KvReserved | m.KvRefused) -> None:
        number = int(answer.choice_id)
        if isinstance(answer, m.KvRefused) and number in self._put_on:
            self._computed_again(number)
        elif isinstance(answer, m.KvRefused):
            raise SimulationError(f"{answer.worker_id} has no free KV blocks for a hand-off: {answer.reason}")

    def _await_next(self) -> None:
        self._awaited = next(self._arrivals, None)
        if self._awaited is not None:
            self._queue.at(self._awaited.at_s, self._arrive, self._awaited)

    def _arrive(self, arrival: Arrival) -> None:
        self._client.submit(arrival)
        self._await_next()

    def _start_ticks(self) -> None:
        if not self._ticks:
            self._tick()

    def _tick(self, _: None = None) -> None:
        """Tick the scheduler and the machines while requests are live or to come, and a machine can serve them."""
        self._silent_s = self._silent_s + self._settings.tick_s if self._queue.is_empty else 0.0
        if self._silent_s > _LONGEST_SILENCE_S:
            raise SimulationError(
                f"{self._client.live} requests wait, and nothing has happened for {self._silent_s:.0f} s"
            )
        self._scheduler_receives(m.Tick())
        for machine in list(self._machines.values()):
            machine.tick()
        self._ticks = bool(self._machines) and (self._client.live > 0 or self._awaited is not None)
        if self._ticks:
            self._queue.at(self._queue.now + self._settings.tick_s, self._tick)

    def _scheduler_receives(self, event: SchedulerEvent) -> None:
        for command in self._scheduler.handle(event, self._queue.now):
            if isinstance(command, m.Send):
                self._control.send(command.recipient_id, command.message)


def _scheduler(machines: Sequence[SimulatedMachine], settings: WorldSettings) -> SchedulerRole | DirectScheduler:
    if settings.through_scheduler:
        return SchedulerRole(_SCHEDULER, settings.limits, policy=settings.pools)
    if len(machines) > 1:
        raise ValueError("through_scheduler=False needs a world of one machine: it has no rule to choose one")
    return DirectScheduler(_SCHEDULER, _CLIENT, machine_ids(1)[0])


class DirectScheduler:
    """Stands in for the scheduler of a one-machine world: requests go straight to the machine, whose queue is under study, and
    which serves both phases."""

    def __init__(self, scheduler_id: str, client_id: str, machine_id: str) -> None:
        self._id = scheduler_id
        self._client_id = client_id
        self._target = KvTarget(machine_id, 1, machine_id, ())
        self._orders = 0

    def handle(self, event: SchedulerEvent, now: float) -> list[m.Send]:
        """Forward a request, or return a rejection; ignore all other events."""
        if isinstance(event, m.SubmitRequest):
            return [m.Send(self._target.worker_id, self._order(event))]
        if isinstance(event, m.KvRefused):
            rejected = m.RequestRejected(event.choice_id, event.epoch, m.RejectCode.NEVER_FITS, event.reason)
            return [m.Send(self._client_id, rejected)]
        return []

    def _order(self, request: m.SubmitRequest) -> m.StartPrefill:
        self._orders += 1
        return m.StartPrefill(
            choice_id=request.choice_id,
            epoch=request.epoch,
            stream=request.stream,
            scheduler_id=self._id,
            assignment=self._orders,
            prompt_tokens=request.prompt_tokens,
            target=self._target,
            lease_s=math.inf,
            max_new_tokens=request.max_new_tokens,
        )
