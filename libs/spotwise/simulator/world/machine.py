"""A machine of the simulated cluster: its worker, its links, and its heartbeats. What its worker does until now is counted
before it receives anything else. While memory is ample its sequences are counted in groups (`aggregate_worker.py`), with the
results of the role that handles each of them (`stepped_worker.py`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from spotwise.core.messages import mesh as m
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.simulator.world.aggregate_worker import AggregateWorker, can_aggregate
from spotwise.simulator.world.hand_offs import HandOffs
from spotwise.simulator.world.machine_worker import MachineWorker, Site
from spotwise.simulator.world.network import Link
from spotwise.simulator.world.observation import MachineResult
from spotwise.simulator.world.settings import SimulatedMachine
from spotwise.simulator.world.stepped_worker import SteppedWorker
from spotwise.simulator.world.stepwise import aggregated, stepped
from spotwise.simulator.world.surroundings import Surroundings


class Machine:
    """One machine of the world.

    Attributes:
        has_left: it takes and does nothing any more.

    Args:
        kind: its hardware, and the pool it starts in.
        phase: phase of its heartbeats, at least 0 and below 1, so that not all machines beat at once.
    """

    def __init__(self, machine_id: str, kind: SimulatedMachine, phase: float, around: Surroundings) -> None:
        machine_type = kind.machine_type
        self.id = machine_id
        self.home_pool = kind.home_pool
        own_s = machine_type.link_latency_s
        latency_s = around.settings.link_latency_s if own_s is None else own_s
        self.send_link = Link(machine_type.link_bytes_per_s, latency_s)
        self.receive_link = Link(machine_type.link_bytes_per_s, latency_s)
        self.has_left = False
        self._phase_s = phase * around.settings.heartbeat_s
        self._around = around
        self._queue = around.queue
        self._hand_offs = HandOffs(self.send_link, self.receive, around, kind.overlap)
        policy = around.settings.followed(kind.policy or around.settings.policy)
        if policy.prefix_caching is not around.settings.policy.prefix_caching:
            raise ValueError(f"{machine_type.name}: prefix caching is a world's, of all its machines or of none")
        self._site = Site(machine_id, machine_type, policy, around, self._hand_offs, self)
        self._aggregates = can_aggregate(self._site)
        self._worker: MachineWorker = (AggregateWorker if self._aggregates else SteppedWorker)(self._site)
        self._reported: tuple[m.Pool, m.WorkerLoad] | None = None
        self._beat_is_planned = False
        self._news_is_planned = False
        self._sequence_left = False
        self._beaten_s = -math.inf
        around.control.open_inbox(machine_id, self.receive)

    def receive(self, event: Any) -> None:
        """Receive a message, or an event of the machine's own engine and links."""
        if self.has_left:
            return
        self._worker.settle()
        if type(event) is m.StartPrefill and event.target.worker_id != self.id:
            self._hand_offs.ordered(event)
        self._worker.handle(event)
        if self._sequence_left:
            self._beat_soon()
        if not self._beat_is_planned:
            self._plan_beat()

    def tick(self) -> None:
        """Let a role that waits notice the time: a promise of blocks may be over (`preemptive_allocator.py`)."""
        if not self.has_left and self._worker.waits:
            self._worker.handle(m.Tick())

    def go_stepwise(self, event: Any) -> None:
        """Let a role go on with the worker's work, and handle this event first."""
        assert isinstance(self._worker, AggregateWorker)
        self._worker = stepped(self._worker.work())
        self._worker.handle(event)

    def order_ended(self, *, has_news: bool) -> None:
        """Beat after an order that computed prompts, or after which a sequence left; then memory may be ample again."""
        if self._aggregates and isinstance(self._worker, SteppedWorker):
            self._worker = aggregated(self._worker, self._site) or self._worker
        if has_news or self._sequence_left:
            self._beat_soon()
        if not self._beat_is_planned:
            self._plan_beat()

    def sequence_left(self) -> None:
        """Note that a sequence left, which may be news."""
        self._sequence_left = self._around.settings.beats_after_endings

    def take_home_pool(self, pool: m.Pool) -> None:
        """Report this pool from now on."""
        self.home_pool = pool

    def sequences(self) -> tuple[Sequence, ...]:
        """Return the sequences here, as of the end of the last whole iteration."""
        self._worker.settle()
        return self._stepwise.role.sequences

    @property
    def state(self) -> m.MemberState:
        """Whether it takes new requests."""
        return self._worker.state

    @property
    def free_blocks(self) -> int:
        """Blocks of the device without an owner."""
        return self._worker.free_blocks

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs."""
        self._worker.settle()
        return self._worker.boundary_s

    def drain(self) -> None:
        """Take nothing new from now on; until when, the world decides."""
        self.receive(m.Drain(self.id, math.inf))
        self._reported = None
        self.beat()

    def leave(self) -> tuple[Sequence, ...]:
        """Stop at once; return the sequences that were here."""
        sequences = self.sequences()
        self.has_left = True
        self._stepwise.stop()
        for sequence in sequences:
            self._hand_offs.drop(sequence.sequence_id)
        around = self._around
        around.control.close_inbox(self.id)
        around.control.send(around.scheduler_id, replace(self._member(), state=m.MemberState.LEFT))
        return sequences

    def finish(self) -> MachineResult:
        """Return the machine's totals."""
        totals = self._worker.totals()
        return MachineResult(
            self.id,
            self.home_pool,
            self._hand_offs.sent,
            self.send_link.carried_bytes,
            totals.preemptions,
            totals.peak_kv_tokens,
            totals.swapped_out_bytes,
            totals.swapped_in_bytes,
        )

    @property
    def held_blocks(self) -> int:
        """Blocks with an owner, of the device and of the host."""
        return self._worker.held_blocks

    @property
    def _stepwise(self) -> SteppedWorker:
        """The worker of an elastic world's machine, which is never another one."""
        assert isinstance(self._worker, SteppedWorker)
        return self._worker

    def beat(self) -> None:
        """Send a heartbeat, unless the last one reported the same."""
        if self.has_left:
            return
        self._worker.settle()
        self._beaten_s = self._queue.now
        self._sequence_left = False
        load = self._worker.load()
        if self._is_news(load):
            self._reported = (self.home_pool, load)
            self._around.control.send(self._around.scheduler_id, self._member(load))

    def _is_news(self, load: m.WorkerLoad) -> bool:
        if self._reported is None:
            return True
        pool, known = self._reported
        # what changes in nearly every iteration first: all fields are thirty
        return load.remaining_tokens != known.remaining_tokens or load != known or pool is not self.home_pool

    def _member(self, load: m.WorkerLoad | None = None) -> m.Member:
        kind = m.MemberKind.PROMPT_WORKER if self.home_pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
        return m.Member(self.id, kind, 1, self._worker.state, self.id, 1, "", pool=self.home_pool, load=load)

    def _beat_in_turn(self, _: None) -> None:
        self._beat_is_planned = False
        self.beat()
        if self._worker.is_running:
            self._plan_beat()

    def _beat_soon(self) -> None:
        """Send an early heartbeat, but not too soon after the last one."""
        if not self._news_is_planned:
            due_s = self._beaten_s + self._around.settings.news_interval_s
            if due_s <= self._queue.now:
                self.beat()
            else:
                self._news_is_planned = True
                self._queue.at(due_s, self._beat_with_news)

    def _beat_with_news(self, _: None) -> None:
        self._news_is_planned = False
        self.beat()

    def _plan_beat(self) -> None:
        self._beat_is_planned = True
        period_s, now = self._around.settings.heartbeat_s, self._queue.now
        beats = math.floor((now - self._phase_s) / period_s) + 1
        if self._phase_s + beats * period_s <= now:  # rounded down
            beats += 1
        self._queue.at(self._phase_s + beats * period_s, self._beat_in_turn)
