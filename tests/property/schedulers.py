"""The schedulers of a whole mesh in one process: real roles and leases. One acts; any may die, stand still or wake up late.

What a gateway submits reaches all of them. The store answers late, or not at all, and may forget everything. A watcher reports
some of those that die. A clock may be set back while its process stands still, which then believes that it acts still.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from spotwise.core.gateway import commands as g
from spotwise.core.membership.term import TermLease
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerActivated, SchedulerDeactivated, SchedulerRole
from spotwise.core.worker import commands as c
from spotwise.wire.roles import MeshRole
from tests.fakes.memory import MemoryStore
from tests.property.fake_worker import FakeWorker
from tests.property.mesh_world import HEARTBEAT_S, MeshWorld

T = TypeVar("T")

LEASE_S = 1.5
SUBMIT_TIMEOUT_S = 5.0
#: A client waits for longer than all schedulers are ever away.
SUBMIT_S = 120.0
#: Orders that only a scheduler gives, but for reservations and cancellations.
ORDERS = (m.ReserveKv, m.StartPrefill, m.CancelRequest, m.ChangeHomePool, m.ForgetGateway)
#: What an order that is obeyed leads to.
OBEYED = (h.ExpectKv, c.LoadRecord, c.TakeHomePool, c.DropSequence)


def answer_of(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


@dataclass
class Process:
    """One scheduler's process; `set_back_s`: of its clock."""

    member: m.Member
    role: SchedulerRole
    lease: TermLease
    alive: bool = True
    set_back_s: float = 0.0
    ended: str | None = None
    waiting: list[Callable[[], None]] | None = None
    orders: list[int] = field(default_factory=list)

    @property
    def holder(self) -> str:
        return f"{self.member.id}/{self.member.incarnation}"


class Schedulers:
    """Some schedulers, of which the one with the lease acts.

    Attributes:
        processes: by id; those that died are replaced by their successors.
        refused: orders of earlier terms that came to workers.
        store_away_until_s: until then the store answers no scheduler.
    """

    def __init__(self, world: MeshWorld, count: int = 2) -> None:
        self.world = world
        self.processes: dict[str, Process] = {}
        self.refused = 0
        self.takeovers = 0
        self.store_away_until_s = 0.0
        self._store = MemoryStore(self)
        self._obeyed: dict[tuple[str, int], int] = {}
        world.schedulers = self
        world.scheduler_is_up = False
        world.submit_s = SUBMIT_S
        world.gateway = world.new_gateway(1)
        for number in range(count):
            self.start(f"scheduler-{number}")

    def now(self) -> float:
        """The store's clock."""
        return self.world.now

    # --- processes ----------------------------------------------------------------------------------------------------

    def start(self, scheduler_id: str) -> None:
        """Run a scheduler, unless one of this id runs."""
        before = self.processes.get(scheduler_id)
        if before is not None and before.alive:
            return
        world, incarnation = self.world, int(self.world.now * 1000)
        role = SchedulerRole(scheduler_id, world.limits, incarnation, world.pool_policy, stands_by=True)
        member = replace(world.plain_members["scheduler"], id=scheduler_id, incarnation=incarnation)
        process = self.processes[scheduler_id] = Process(member, role, TermLease(LEASE_S, needs_store=False))
        for worker in world.workers.values():
            if worker.registered is not None:
                self._feed(process, worker.registered)
        self._beat(process)
        self._compete(process)

    def kill(self, scheduler_id: str, back_s: float) -> None:
        """End a scheduler; its supervisor starts it again, and the watcher may report its end."""
        process = self.processes[scheduler_id]
        if process.alive:
            process.alive = False
            if self.world.rng.random() < 0.5:
                self.world.broadcast(replace(process.member, state=m.MemberState.LOST))
            self.world.at(back_s, partial(self.start, scheduler_id))

    def pause(self, scheduler_id: str, seconds: float, set_back_s: float = 0.0) -> None:
        """Let a scheduler stand still; what comes waits."""
        process = self.processes[scheduler_id]
        if process.alive and process.waiting is None:
            process.waiting = []
            self.world.at(seconds, partial(self._resume, process, seconds, set_back_s))

    def _resume(self, process: Process, seconds: float, set_back_s: float) -> None:
        waiting, process.waiting = process.waiting or [], None
        process.set_back_s += set_back_s
        self._feed(process, m.Tick(away_s=seconds))
        for action in waiting:
            action()

    def forget(self) -> None:
        """Let the store lose its data."""
        self._store = MemoryStore(self)

    @property
    def active(self) -> list[str]:
        """Those that believe to act."""
        return [id_ for id_, each in self.processes.items() if each.alive and each.lease.term is not None]

    @property
    def live(self) -> int:
        """Requests that any of them has."""
        return sum(each.role.live + each.role.queued for each in self.processes.values() if each.alive)

    # --- events -------------------------------------------------------------------------------------------------------

    def receive_all(self, event: Any) -> None:
        """Deliver an event to each of them, at its own time."""
        for scheduler_id in self.processes:
            self.receive(scheduler_id, event)

    def receive(self, scheduler_id: str, event: Any) -> None:
        """Deliver an event to whatever process has that id when it arrives."""
        self.world.transmit("broker", scheduler_id, lambda: self._feed(self.processes[scheduler_id], event))

    def submit(self, order: m.SubmitRequest) -> None:
        """Submissions are requests: the sender gets an error where none listens, and after a while where none answers."""
        failed = g.SubmitFailed(order.choice_id, order.epoch, "no scheduler")
        if not any(each.alive for each in self.processes.values()):
            self.world.feed_gateway(failed)
            return
        self.receive_all(order)
        self.world.at(SUBMIT_TIMEOUT_S, lambda: self.world.feed_gateway(failed))

    def tick(self, tick: m.Tick) -> None:
        for process in list(self.processes.values()):
            if process.waiting is None:
                self._feed(process, tick)

    def _feed(self, process: Process, event: Any) -> None:
        if not process.alive:
            return
        if process.waiting is not None:
            process.waiting.append(partial(self._feed, process, event))
            return
        for command in process.role.handle(event, self.world.now - process.set_back_s):
            if isinstance(command, m.Send):
                if isinstance(command.message, ORDERS):
                    assert command.message.term == process.role.term > 0
                self.world.send(MeshRole.SCHEDULER, process.member.id, command)
        if isinstance(event, m.Member):
            self._seen(process, event)

    def _seen(self, process: Process, member: m.Member) -> None:
        term = member.term if member.load is None else member.load.scheduler_term
        if term is not None and process.lease.saw(term):
            process.ended = process.holder
            self._feed(process, SchedulerDeactivated())
        is_over = member.state in (m.MemberState.LEFT, m.MemberState.LOST)
        if is_over and member.kind is m.MemberKind.CLUSTER_SCHEDULER and process.lease.term is None:
            process.ended = f"{member.id}/{member.incarnation}"
            process.lease.holder_ended()

    def _beat(self, process: Process) -> None:
        if process.alive:
            if process.waiting is None:
                self.world.broadcast(replace(process.member, term=process.lease.term))
            self.world.at(HEARTBEAT_S, partial(self._beat, process))

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _compete(self, process: Process) -> None:
        if not process.alive:
            return
        self.world.at(process.lease.pause_s, partial(self._compete, process))
        now = self.world.now - process.set_back_s
        if process.waiting is not None or not process.lease.may_ask(now, receives=True):
            return
        if self.world.now < self.store_away_until_s:
            late = partial(self._store_is_away, process)
            self.world.at(process.lease.answer_within_s, lambda: self._answer(process, late))
            return
        ended, process.ended = process.ended, None
        asked = partial(self._ask, process, ended, process.lease.least_term(now), now)
        self.world.at(self.world.delay(0.1), asked)

    def _ask(self, process: Process, ended: str | None, at_least: int, asked_s: float) -> None:
        if ended is not None:
            answer_of(self._store.end_term("s", ended))
        term = answer_of(self._store.hold_term("s", process.holder, at_least, LEASE_S))
        answer = partial(self._answered, process, term, asked_s)
        self.world.at(self.world.delay(0.1), lambda: self._answer(process, answer))

    def _answer(self, process: Process, answer: Callable[[], None]) -> None:
        if process.waiting is not None:
            process.waiting.append(answer)
        elif process.alive:
            answer()

    def _store_is_away(self, process: Process) -> None:
        lease = process.lease
        assert not lease.store_is_away(self.world.now - process.set_back_s)
        if lease.term is not None:
            self._feed(process, SchedulerActivated(lease.term, lease.until_s))

    def _answered(self, process: Process, term: int | None, asked_s: float) -> None:
        if term is None:
            if process.lease.refused():
                self._feed(process, SchedulerDeactivated())
            return
        has_begun = process.lease.held(term, asked_s)
        self._feed(process, SchedulerActivated(term, process.lease.until_s))
        if has_begun:
            self.takeovers += 1
            self.world.broadcast(replace(process.member, term=term))

    # --- the law ------------------------------------------------------------------------------------------------------

    def handled_by(self, worker: FakeWorker, event: Any, handle: Callable[[], list[Any]]) -> list[Any]:
        """Let a worker handle an event, and check that it obeys no scheduler's order of an earlier term than its last."""
        if not isinstance(event, ORDERS) or not event.term:
            return handle()
        key = worker.member.id, worker.member.incarnation
        latest = self._obeyed.get(key, 0)
        self._obeyed[key] = max(latest, event.term)
        if event.term >= latest:
            return handle()
        self.refused += 1
        before = [(sequence.choice_id, sequence.epoch) for sequence in worker.role.sequences]
        commands = handle()
        assert [(sequence.choice_id, sequence.epoch) for sequence in worker.role.sequences] == before
        assert not [each for each in commands if isinstance(each, OBEYED)]
        answers = [each.message for each in commands if isinstance(each, m.Send)]
        assert not [each for each in answers if isinstance(each, m.KvReserved | m.PrefillAccepted)]
        return commands
