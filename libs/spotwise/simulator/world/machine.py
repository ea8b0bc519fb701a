"""A machine of the simulated cluster: a worker's role, and an engine in simulated time. `IterationCost` times iterations, the
network times hand-offs; ended iterations are counted before the role receives anything else. Up to `max_in_flight`
iterations run at once, each in its own stage; KV is swapped beside them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from spotwise.core import messages as m
from spotwise.core.counted_blocks import CountedBlockPool
from spotwise.core.sampling import SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.role import WorkerRole
from spotwise.core.worker.sequence import Sequence
from spotwise.simulator.world.hand_offs import HandOffs
from spotwise.simulator.world.host_link import HostLink
from spotwise.simulator.world.network import Link
from spotwise.simulator.world.orders import IterationOrder
from spotwise.simulator.world.pipeline import Pipeline
from spotwise.simulator.world.results import MachineResult
from spotwise.simulator.world.settings import SimulatedMachine
from spotwise.simulator.world.surroundings import Surroundings
from spotwise.simulator.world.token_times import TOKEN_ID, TokenTimes


class Machine:
    """One worker of the world.

    Attributes:
        pool: blocks of the device.
        host: blocks of the host's memory; `None` without any.

    Args:
        kind: its hardware, and the pool it starts in.
        phase: of its heartbeats, at least 0 and below 1, so that not all machines beat at once.
    """

    def __init__(self, machine_id: str, kind: SimulatedMachine, phase: float, around: Surroundings) -> None:
        settings, machine_type = around.settings, kind.machine_type
        policy, block_tokens = settings.worker_policy, settings.kv_block_size
        kv_tokens = machine_type.kv_tokens(settings.model, settings.memory_share)
        block_bytes = block_tokens * settings.model.kv_token_bytes
        host_blocks = machine_type.host_memory_bytes // block_bytes
        self.id = machine_id
        self.home_pool = kind.home_pool
        self.send_link = Link(machine_type.link_bytes_per_s)
        self.receive_link = Link(machine_type.link_bytes_per_s)
        self.pool = CountedBlockPool(kv_tokens // block_tokens, block_tokens)
        self.host = CountedBlockPool(host_blocks, block_tokens) if host_blocks else None
        self.role = WorkerRole(machine_id, 1, machine_id, self.pool, policy, self.host)
        self._cost = machine_type.cost
        self._phase_s = phase * settings.heartbeat_s
        self._around = around
        self._queue = around.queue
        self._counts = policy.counted_steps is not None
        self._token_times = TokenTimes(around.observer)
        self._pipeline = Pipeline(policy.max_in_flight) if policy.max_in_flight > 1 else None
        self._orders: deque[IterationOrder] = deque()
        self._peak_blocks = 0
        self._hand_offs = HandOffs(self.send_link, self.receive, around)
        self._host_link = HostLink(machine_type.host_bytes_per_s, block_bytes, self._queue, self.receive)
        self._reported: tuple[m.Pool, m.WorkerLoad] | None = None
        self._beat_is_planned = False
        self._news_is_planned = False
        self._sequence_left = False
        self._beaten_s = -math.inf
        self.has_left = False
        self._performers: dict[type, Callable[[Any], None]] = {
            m.Send: lambda command: around.control.send(command.recipient_id, command.message),
            m.RecordLedger: _nothing,
            c.LoadRecord: self._load_record,
            c.DropSequence: self._drop,
            c.AppendToken: _nothing,
            c.RunIteration: self._run_iteration,
            c.EndRun: self._end_run,
            c.ExpectKv: _nothing,
            c.ForgetKv: _nothing,
            c.PushKv: self._hand_offs.push,
            c.AbortPush: self._hand_offs.abort,
            c.TakeHomePool: self._take_home_pool,
            c.SwapOut: self._host_link.swap_out,
            c.SwapIn: self._host_link.swap_in,
            c.Leave: _nothing,
        }
        around.control.open_inbox(machine_id, self.receive)

    def receive(self, event: Any) -> None:
        """Receive a message, or an event of the machine's own engine and links."""
        if self.has_left:
            return
        self._count_ended()
        if isinstance(event, m.StartPrefill) and event.target.worker_id != self.id:
            self._hand_offs.ordered(event)
        self._role_receives(event)
        self._plan_beat()

    def tick(self) -> None:
        """Let a role that waits notice the time: a promise of blocks may be over (`preemptive_kv_allocator.py`)."""
        if not (self._orders or self.role.is_empty or self.has_left):
            self._role_receives(m.Tick())

    def sequences(self) -> tuple[Sequence, ...]:
        """Return the sequences here, as of the end of the last whole iteration."""
        self._count_ended()
        return self.role.sequences

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs."""
        self._count_ended()
        return self._orders[0].next_end_s if self._orders else self._queue.now

    def drain(self) -> None:
        """Take nothing new from now on; until when, the world decides."""
        self.receive(m.Drain(self.id, math.inf))
        self._reported = None
        self.beat()

    def leave(self) -> tuple[Sequence, ...]:
        """Stop at once; return the sequences that were here."""
        sequences = self.sequences()
        self.has_left = True
        self._orders.clear()
        for sequence in sequences:
            self._hand_offs.drop(sequence.sequence_id)
        around = self._around
        around.control.close_inbox(self.id)
        around.control.send(around.scheduler_id, replace(self._member(), state=m.MemberState.LEFT))
        return sequences

    def finish(self) -> MachineResult:
        """Return the machine's totals."""
        return MachineResult(
            self.id,
            self.home_pool,
            self._hand_offs.sent,
            self.send_link.carried_bytes,
            self.role.load().preemptions,
            self._peak_blocks * self.pool.block_size,
            self._host_link.out_bytes,
            self._host_link.in_bytes,
        )

    @property
    def held_blocks(self) -> int:
        """Blocks with an owner, of the device and of the host."""
        return self.pool.used_blocks + (self.host.used_blocks if self.host else 0)

    def _role_receives(self, event: c.WorkerEvent) -> None:
        for command in self.role.handle(event, self._queue.now):
            self._performers[type(command)](command)

    def beat(self) -> None:
        """Send a heartbeat, unless the last one reported the same."""
        if self.has_left:
            return
        self._count_ended()
        self._beaten_s = self._queue.now
        self._sequence_left = False
        load = self.role.load()
        if (self.home_pool, load) != self._reported:
            self._reported = (self.home_pool, load)
            self._around.control.send(self._around.scheduler_id, self._member(load))

    def _member(self, load: m.WorkerLoad | None = None) -> m.Member:
        kind = m.MemberKind.PROMPT_WORKER if self.home_pool is m.Pool.PROMPT else m.MemberKind.TOKEN_WORKER
        return m.Member(self.id, kind, 1, self.role.state, self.id, 1, "", pool=self.home_pool, load=load)

    def _beat_in_turn(self, _: None) -> None:
        self._beat_is_planned = False
        self.beat()
        if self._orders:
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
        if not self._beat_is_planned:
            self._beat_is_planned = True
            period_s, now = self._around.settings.heartbeat_s, self._queue.now
            beats = math.floor((now - self._phase_s) / period_s) + 1
            if self._phase_s + beats * period_s <= now:  # rounded down
                beats += 1
            self._queue.at(self._phase_s + beats * period_s, self._beat_in_turn)

    def _take_home_pool(self, command: c.TakeHomePool) -> None:
        self.home_pool = command.pool

    def _load_record(self, command: c.LoadRecord) -> None:
        record = self._around.store.record(command.choice_id, command.epoch)
        if record is None:
            gone = c.RecordUnavailable(command.choice_id, command.epoch, "the request was closed", retryable=False)
            self._queue.at(self._queue.now, self.receive, gone)
        else:
            self._token_times.enter(record.sequence_id, self._around.store.progress(command.choice_id))
            self._queue.at(self._queue.now, self.receive, c.RecordLoaded(record))

    def _drop(self, command: c.DropSequence) -> None:
        self._token_times.drop(command.sequence_id)
        self._sequence_left = self._around.settings.beats_after_endings
        self._hand_offs.drop(command.sequence_id)

    def _run_iteration(self, command: c.RunIteration) -> None:
        order = IterationOrder(command.batch, command.steps, self._cost, self._queue.now, self._pipeline)
        self._orders.append(order)
        self._peak_blocks = max(self._peak_blocks, self.held_blocks)
        if order.shape.prompt_tokens:
            for row in command.batch.rows:
                if not row.is_decode:
                    self._hand_offs.part_started(row, order.look_s - self._queue.now)
        self._queue.at(order.look_s, self._look, (order, order.look_s))

    def _end_run(self, command: c.EndRun) -> None:
        order = self._orders[-1]
        order.cut()
        self._queue.at(order.look_s, self._look, (order, order.look_s))

    def _look(self, planned: tuple[IterationOrder, float]) -> None:
        order, look_s = planned
        if not self._orders or self._orders[0] is not order or order.look_s != look_s:
            return  # it was cut, or is over
        if order.is_planned:
            self._count_ended()
            if order.shape.prompt_tokens or self._sequence_left:
                self._beat_soon()
            self._plan_beat()
        else:
            order.plan()
            self._queue.at(order.look_s, self._look, (order, order.look_s))

    def _count_ended(self) -> None:
        """Report ended iterations to the role, before any later event."""
        for order in tuple(self._orders):
            began_s = order.counted_s
            ends_s = order.take_ended(self._queue.now)
            if not ends_s:
                return
            self._around.observer.iterations_ended(self.id, order.shape, order.counted_s - began_s, len(ends_s))
            self._token_times.iterations_ended(order.batch, ends_s)
            self._role_receives(self._ended(order, len(ends_s)))

    def _ended(self, order: IterationOrder, iterations: int) -> c.IterationFinished | c.IterationsCounted:
        is_over = order.is_over
        if is_over:
            self._orders.popleft()
            made = self._token_times.order_ended(order.batch)
            if not self._counts:
                return c.IterationFinished(tuple(SampledToken(id_, TOKEN_ID) for id_ in made))
        return c.IterationsCounted(iterations, ended=is_over)


def _nothing(command: Any) -> None:
    """Do nothing: no message is lost here, so ledgers and windows are not used; the world lets drained machines leave."""
