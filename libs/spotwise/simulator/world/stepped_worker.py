"""A machine's worker, sequence by sequence: its role, and an engine in simulated time. `IterationCost` times iterations, the
network times hand-offs. Up to `max_in_flight` iterations run at once, each in its own stage; KV is swapped beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from spotwise.core.kv.blocks import BlockPool
from spotwise.core.kv.counted_blocks import CountedBlockPool
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.sampling import SampledToken
from spotwise.core.worker import commands as c
from spotwise.core.worker.role import WorkerRole
from spotwise.simulator.world.machine_worker import Site, WorkerTotals
from spotwise.simulator.world.network import HostLink
from spotwise.simulator.world.orders import IterationOrder, Pipeline
from spotwise.simulator.world.token_times import TOKEN_ID, TokenTimes


class SteppedWorker:
    """A worker's role, and what performs its commands; `peak_blocks` are the most at an iteration's start."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._around = around = site.around
        self._queue = around.queue
        self._cost = site.machine_type.cost
        policy, block_tokens = site.policy, around.settings.kv_block_size
        block_bytes = block_tokens * around.settings.model.kv_token_bytes
        host_blocks = site.machine_type.host_memory_bytes // block_bytes
        # prefix caches find blocks by their content, which counted ones do not have
        new_pool = BlockPool if policy.prefix_caching else CountedBlockPool
        self.pool = new_pool(site.kv_blocks, block_tokens)
        self.host = new_pool(host_blocks, block_tokens) if host_blocks else None
        self.role = WorkerRole(site.machine_id, 1, site.machine_id, self.pool, policy, self.host)
        self.token_times = TokenTimes(around.observer)
        self._counts = policy.counted_steps is not None
        self._pipeline = Pipeline(policy.max_in_flight) if policy.max_in_flight > 1 else None
        self._orders: deque[IterationOrder] = deque()
        self._loaded: deque[c.RecordLoaded | c.RecordUnavailable] = deque()
        self.peak_blocks = 0
        hand_offs = site.hand_offs
        self._host_link = HostLink(site.machine_type.host_bytes_per_s, block_bytes, self._queue, site.host.receive)
        self._performers: dict[type, Callable[[Any], None]] = {
            m.Send: lambda command: around.control.send(command.recipient_id, command.message),
            m.RecordLedger: _nothing,
            c.LoadRecord: self._load_record,
            c.DropSequence: self._drop,
            c.AppendToken: _nothing,
            c.RunIteration: self._run_iteration,
            c.EndRun: self._end_run,
            h.ExpectKv: _nothing,
            h.ForgetKv: _nothing,
            c.PushKv: hand_offs.push,
            h.AbortPush: hand_offs.abort,
            c.TakeHomePool: lambda command: site.host.take_home_pool(command.pool),
            c.SwapOut: self._host_link.swap_out,
            c.SwapIn: self._host_link.swap_in,
            c.Leave: _nothing,
        }

    @property
    def state(self) -> m.MemberState:
        """Whether it takes new requests."""
        return self.role.state

    @property
    def is_running(self) -> bool:
        """Whether an iteration runs."""
        return bool(self._orders)

    @property
    def waits(self) -> bool:
        """Whether it holds sequences, and nothing runs."""
        return not (self._orders or self.role.is_empty)

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs."""
        return self._orders[0].next_end_s if self._orders else self._queue.now

    @property
    def free_blocks(self) -> int:
        """Blocks of the device without an owner."""
        return self.pool.free_blocks

    @property
    def held_blocks(self) -> int:
        """Blocks with an owner, of the device and of the host."""
        return self.pool.used_blocks + (self.host.used_blocks if self.host else 0)

    @property
    def new_order(self) -> IterationOrder | None:
        """The order in flight, where it is alone and has just begun."""
        is_new = len(self._orders) == 1 and self._orders[0].counted_s == self._queue.now
        return self._orders[0] if is_new and self._pipeline is None else None

    def settle(self) -> None:
        """Report ended iterations to the role, before any later event."""
        for order in tuple(self._orders):
            began_s, looked_s = order.counted_s, order.look_s
            ends_s = order.take_ended(self._queue.now)
            if not ends_s:
                return
            self._around.observer.iterations_ended(
                self._site.machine_id, order.shape, order.counted_s - began_s, len(ends_s)
            )
            self.token_times.iterations_ended(order.batch, ends_s)
            if order.look_s != looked_s and not order.is_over:  # ends beyond those that were looked for
                self._look_at(order)
            self.handle(self._ended(order, len(ends_s)))

    def handle(self, event: c.WorkerEvent) -> None:
        """Let the role handle an event, and perform its commands; records are there at once."""
        for command in self.role.handle(event, self._queue.now):
            self._performers[type(command)](command)
        while self._loaded:
            for command in self.role.handle(self._loaded.popleft(), self._queue.now):
                self._performers[type(command)](command)

    def load(self) -> m.WorkerLoad:
        """Count what it holds."""
        return self.role.load()

    def totals(self) -> WorkerTotals:
        """Return its totals."""
        return WorkerTotals(
            self.role.load().preemptions,
            self.peak_blocks * self.pool.block_size,
            self._host_link.out_bytes,
            self._host_link.in_bytes,
        )

    def stop(self) -> None:
        """End all iterations without a result."""
        self._orders.clear()

    def go_on_with(self, order: IterationOrder | None, peak_blocks: int) -> None:
        """Follow an order that runs already."""
        self.peak_blocks = peak_blocks
        if order is not None:
            self._orders.append(order)
            self._look_at(order)

    def _load_record(self, command: c.LoadRecord) -> None:
        record = self._around.store.record(command.choice_id, command.epoch)
        if record is None:
            error = "the request was closed"
            self._loaded.append(c.RecordUnavailable(command.choice_id, command.epoch, error, retryable=False))
        else:
            self.token_times.enter(record.sequence_id, self._around.store.progress(command.choice_id))
            self._loaded.append(c.RecordLoaded(record))

    def _drop(self, command: c.DropSequence) -> None:
        self.token_times.drop(command.sequence_id)
        self._site.host.sequence_left()
        self._site.hand_offs.drop(command.sequence_id)

    def _run_iteration(self, command: c.RunIteration) -> None:
        order = IterationOrder(command.batch, command.steps, self._cost, self._queue.now, self._pipeline)
        self._orders.append(order)
        self.peak_blocks = max(self.peak_blocks, self.held_blocks)
        if order.shape.prompt_tokens:
            for row in command.batch.rows:
                if not row.is_decode:
                    self._site.hand_offs.part_started(row, order.look_s - self._queue.now)
        self._look_at(order)

    def _end_run(self, command: c.EndRun) -> None:
        order = self._orders[-1]
        order.cut()
        self._look_at(order)

    def _look_at(self, order: IterationOrder) -> None:
        self._queue.at(order.look_s, self._look, (order, order.look_s))

    def _look(self, planned: tuple[IterationOrder, float]) -> None:
        order, look_s = planned
        if not self._orders or self._orders[0] is not order or order.look_s != look_s:
            return  # it was cut, or is over
        if order.is_planned:
            self.settle()
            self._site.host.order_ended(has_news=order.shape.prompt_tokens > 0)
        else:
            order.plan()
            self._look_at(order)

    def _ended(self, order: IterationOrder, iterations: int) -> c.IterationFinished | c.IterationsCounted:
        is_over = order.is_over
        if is_over:
            self._orders.popleft()
            made = self.token_times.order_ended(order.batch)
            if not self._counts:
                return c.IterationFinished(tuple(SampledToken(id_, TOKEN_ID) for id_ in made))
        return c.IterationsCounted(iterations, ended=is_over)


def _nothing(command: Any) -> None:
    """Do nothing: no message is lost here, so ledgers and windows are not used; the world lets drained machines leave."""
