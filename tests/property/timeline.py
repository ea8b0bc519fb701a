"""One worker role on a timeline of whole ticks: an engine that counts iterations, a store and a mesh that answer after a while.

The role's events follow from its commands and from the script, never from how many iterations an order was, so that two
timelines of one script may be compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from spotwise.core.costs.batching import Batch
from spotwise.core.kv.blocks import BlockPool
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget, RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.role import WorkerRole

BLOCK_SIZE = 4
TICKS_PER_S = 10
#: Ticks of an iteration of decodes; a prompt token is one more.
DECODE_TICKS = 4
LEASE_S = 60.0
OTHER = KvTarget("other", 7, "other:2", (0, 1, 2))
HERE = KvTarget("w", 1, "w:2", ())


@dataclass(frozen=True)
class Arrival:
    """A request and the events of its life.

    Attributes:
        kind: `hand_off` (its prompt is computed here for another worker), `decode` (its KV comes from another one)
            or `in_place` (both phases are here).
        alike: the first tokens of prompts with the same number are the same.
        load_ticks: until its record is loaded.
        then_ticks: until its KV comes, or its hand-off is delivered.
        cancel_ticks: until its client leaves, if that comes first.
    """

    kind: str
    prompt: int
    new: int
    alike: int
    load_ticks: int
    then_ticks: int
    cancel_ticks: int | None


@dataclass
class EngineOrder:
    """An order that the engine is running."""

    batch: Batch
    steps: int
    ticks: int
    counted: int
    began: int  #: of the iteration that runs

    @property
    def ends(self) -> int:
        return self.began + (self.steps - self.counted) * self.ticks


class SwapDevice(Protocol):
    """Takes moves, and looks at what iterations read and write."""

    def begin(self, move: c.SwapOut | c.SwapIn, timeline: Timeline) -> None:
        """A move is ordered."""

    def compute(self, batch: Batch, prompts: Mapping[str, tuple[int, ...]]) -> None:
        """Begin an iteration of sequences with these prompts."""

    def arrive(self, name: str, prompt: tuple[int, ...], block_ids: tuple[int, ...]) -> None:
        """A prompt's KV has come from its prompt worker, into these blocks."""


class Timeline:
    """Runs scripts.

    Attributes:
        iterations: rows of each, in order: sequence, first position, tokens.
        tables: of those iterations that began an order: the block tables of their rows.
        commands: (tick, command) pairs, without the engine's orders.
        free: (tick, free blocks) after each event that is no iteration.
        order_at: by tick, the iteration with which the order of that tick began.
        orders: how many there were.
        prompts: token ids that are known of each request, of a hand-off's first token too; all later ones are only counted.
    """

    def __init__(
        self,
        num_blocks: int,
        policy: WorkerPolicy,
        pool_of: type[BlockPool] = BlockPool,
        host: BlockPool | None = None,
        swaps: SwapDevice | None = None,
    ) -> None:
        self.pool = pool_of(num_blocks, BLOCK_SIZE)
        self.role = WorkerRole("w", 1, "w:2", self.pool, replace(policy, counted_steps=policy.counted_steps or 1), host)
        self._swaps = swaps
        self.tick = 0
        self.iterations: list[tuple[tuple[str, int, int], ...]] = []
        self.tables: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.commands: list[tuple[int, c.WorkerCommand]] = []
        self.free: list[tuple[int, int]] = []
        self.order_at: dict[int, int] = {}
        self.orders = 0
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.live: dict[str, Arrival] = {}
        self._order: EngineOrder | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._entered = 0

    # --- the script ---------------------------------------------------------------------------------------------------

    def at(self, tick: int, action: Callable[[], None]) -> None:
        self._entered += 1
        heapq.heappush(self._events, (tick, self._entered, action))

    def arrive(self, name: str, arrival: Arrival) -> None:
        """A request comes now."""
        self.live[name] = arrival
        stream = m.StreamRef("g", self._entered)
        if arrival.kind == "decode":
            tokens = arrival.prompt + arrival.new
            self.feed(m.ReserveKv(name, 1, stream, "s", 1, tokens, arrival.new, LEASE_S))
        else:
            target = OTHER if arrival.kind == "hand_off" else HERE
            self.feed(m.StartPrefill(name, 1, stream, "s", 1, arrival.prompt, target, LEASE_S, arrival.new))
        if arrival.cancel_ticks is not None:
            self.at(self.tick + arrival.cancel_ticks, lambda: self.feed(m.CancelRequest(name, 1)))

    def stop_early(self) -> None:
        """The engine ends its order at the next boundary, for reasons of its own."""
        if self._order is not None:
            self._order.steps = min(self._order.steps, self._order.counted + 1)

    def run(self, until: int) -> None:
        """Let time pass up to a tick, or until nothing happens any more."""
        while self._events or self._order:
            order = self._order
            if order is not None and (not self._events or order.ends <= self._events[0][0]):
                if order.ends > until:
                    return
                self.tick = order.ends
                self._count(order.steps - order.counted, ended=True)
                continue
            tick, _, action = self._events[0]
            if tick > until:
                return
            heapq.heappop(self._events)
            if order is not None and (steps := (tick - order.began) // order.ticks):
                self.tick = order.began + steps * order.ticks
                self._count(steps, ended=False)
            self.tick = tick
            action()
            self.free.append((tick, self.pool.free_blocks))

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _count(self, steps: int, *, ended: bool) -> None:
        order = self._order
        assert order is not None
        for step in range(order.counted, order.counted + steps):
            self.iterations.append(
                tuple((row.sequence_id, row.first_position + step, row.num_tokens) for row in order.batch.rows)
            )
        order.counted += steps
        order.began += steps * order.ticks
        if ended:
            self._order = None
        self.feed(c.IterationsCounted(steps, ended=ended))

    def _run_iteration(self, batch: Batch, steps: int) -> None:
        assert self._order is None
        self.orders += 1
        self.order_at[self.tick] = len(self.iterations)
        self.tables[len(self.iterations)] = tuple(row.block_ids for row in batch.rows)
        if self._swaps is not None:
            self._swaps.compute(batch, self.prompts)
        self._order = EngineOrder(batch, steps, DECODE_TICKS + batch.prompt_tokens, 0, self.tick)

    # --- the role's commands --------------------------------------------------------------------------------------------

    def feed(self, event: c.WorkerEvent) -> None:
        for command in self.role.handle(event, self.tick / TICKS_PER_S):
            match command:
                case c.RunIteration(batch, steps):
                    self._run_iteration(batch, steps)
                    continue
                case c.EndRun():
                    assert self._order is not None
                    self._order.steps = self._order.counted + 1
                    continue
                case c.LoadRecord(name):
                    self._later(self.live[name].load_ticks, c.RecordLoaded(self._record(name)))
                case m.Send("s", m.KvReserved(name)):
                    arrival = self.live[name]
                    handoff = KvHandoff(name, 1, arrival.prompt, 0)
                    reserved = command.message.target.block_ids
                    self.at(self.tick + arrival.then_ticks, partial(self._kv_arrives, handoff, reserved))
                case m.Send("s", m.KvRefused(name)):
                    self.live.pop(name)
                case c.PushKv(handoff):
                    name = handoff.choice_id
                    self._later(self.live[name].then_ticks, h.HandoffDelivered(name, 1, 1, 0.1, "shm", 0.1))
                case c.SwapOut() | c.SwapIn():
                    assert self._swaps is not None
                    self._swaps.begin(command, self)
                case c.DropSequence(attempt):
                    self.live.pop(attempt.split("@")[0], None)
            self.commands.append((self.tick, command))

    def _kv_arrives(self, handoff: KvHandoff, block_ids: tuple[int, ...]) -> None:
        if self._swaps is not None and handoff.choice_id in self.live:
            self._swaps.arrive(handoff.choice_id, self._prompt(handoff.choice_id), block_ids)
        self.feed(c.KvArrived(handoff, 1, 0.1, "shm"))

    def _later(self, ticks: int, event: c.WorkerEvent) -> None:
        self.at(self.tick + ticks, lambda: self.feed(event))

    def _record(self, name: str) -> RequestRecord:
        arrival = self.live[name]
        stop = StopCriteria(arrival.new)
        return RequestRecord(name, 1, "g", 1, "model", self._prompt(name), (), SamplingParams(), stop, 0.0)

    def _prompt(self, name: str) -> tuple[int, ...]:
        arrival = self.live[name]
        prompt = tuple((arrival.alike * 7 + position // 9) % 50 for position in range(arrival.prompt))
        self.prompts[name] = (*prompt, 0) if arrival.kind == "decode" else prompt
        return prompt
