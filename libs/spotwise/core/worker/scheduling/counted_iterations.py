"""Several decode iterations in one order, for engines whose tokens carry no ids (the simulator's).

Law: one order replaces the iterations that would be ordered one by one if nothing happened meanwhile.
It ends where a sequence reaches `max_new_tokens` or has its first token here, and before an iteration that lacks free blocks.
It is cut short once a sequence becomes runnable, a member ends, or blocks it needs or a waiting sequence could use change.
As long as ended iterations are counted before any other event, every decision is that of single iterations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from spotwise.core.kv.counted_blocks import CountedBlockPool
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.kv.allocator import KvAllocator
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.scheduling.chunked_prefill import ChunkedPrefillBudget
from spotwise.core.worker.scheduling.iterations import Iterations
from spotwise.core.worker.scheduling.policy import SchedulingPolicy
from spotwise.core.worker.sequences.held_work import WorkInFlight
from spotwise.core.worker.sequences.moves import MoveSide
from spotwise.core.worker.sequences.prompt_side import PromptSide
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

#: Token id in the hand-off of a first token that was only counted.
UNNAMED_TOKEN = 0
#: Events that may make a sequence runnable.
_MAY_JOIN = (c.RecordLoaded, c.KvArrived)


class CountedIterations(Iterations):
    """Orders up to `counted_steps` iterations at once, and follows the order in flight."""

    def __init__(
        self,
        table: SequenceTable,
        order: SchedulingPolicy,
        allocator: KvAllocator,
        prompt_side: PromptSide,
        moves: MoveSide,
        policy: WorkerPolicy,
    ) -> None:
        super().__init__(table, order, allocator, prompt_side, moves, policy)
        self._pool = table.pool
        self._max_steps = policy.counted_steps or 1
        self._run: list[Sequence] = []  #: members of the order in flight
        self._steps_left = 0  #: iterations ordered and not counted
        self._blocks_to_come = 0  #: that these take
        self._some_wait = False
        self._held = (0, 0)  #: free blocks and sequences, as far as this order accounts for them
        self._preemptions_before = 0

    def handlers(self) -> dict[type, Callable[[Any, float], None]]:
        """Return what handles the engine's events."""
        return super().handlers() | {c.IterationsCounted: self._iterations_counted}

    def take_over(self, in_flight: WorkInFlight | None, budget: ChunkedPrefillBudget) -> None:
        """Go on with an order of one iteration."""
        super().take_over(in_flight, budget)
        self._steps_left = 0 if in_flight is None else 1

    def run_next(self, event: c.WorkerEvent, now: float) -> None:
        """Order iterations, or cut the order in flight short where `event` changes what comes next."""
        super().run_next(event, now)
        if self._steps_left > 1 and self._is_overtaken_by(event):
            self._steps_left = 1
            self._table.emit(c.EndRun())

    def _steps(self, members: list[tuple[Sequence, int]], candidates: list[Sequence], *, examines: bool) -> int:
        """Return how many iterations of these members, each with its tokens of the first, one order may run."""
        preempted = self._allocator.preemptions != self._preemptions_before
        self._preemptions_before = self._allocator.preemptions
        self._steps_left, self._blocks_to_come = 1, 0
        self._some_wait = len(members) < len(candidates)
        if self._max_steps == 1 or examines:
            return 1
        if self._some_wait and (preempted or self._a_prompt_may_preempt(candidates)):
            return 1  # the next step may give a waiting sequence blocks with nothing new
        steps = self._max_steps
        for sequence, _ in members:
            if not sequence.produced_here or sequence.known_tokens - sequence.computed_tokens != 1:
                return 1
            left = sequence.max_new_tokens - sequence.output_tokens
            if left < steps:
                steps = left
        self._run = [sequence for sequence, _ in members]
        self._steps_left = self._within_free_blocks(steps)
        self._held = (self._pool.free_blocks, len(self._table))
        return self._steps_left

    def _a_prompt_may_preempt(self, candidates: list[Sequence]) -> bool:
        return self._policy.prompts_take_blocks and any(sequence.is_new_prompt for sequence in candidates)

    def _within_free_blocks(self, steps: int) -> int:
        """Return for how many iterations, of `steps` at most, the free blocks suffice; the first has its blocks."""
        if self._growth(steps) > self._pool.free_blocks:
            steps = bisect_right(range(1, steps), self._pool.free_blocks, key=self._growth)
        self._blocks_to_come = self._growth(steps)
        return steps

    def _growth(self, steps: int) -> int:
        """Blocks that the members lack for all but the first of so many iterations."""
        size, growth = self._pool.block_size, 0
        for sequence in self._run:
            lacking = sequence.known_tokens + steps - 1 - size * len(sequence.block_ids)
            if lacking > 0:
                growth -= -lacking // size
        return growth

    def _is_overtaken_by(self, event: c.WorkerEvent) -> bool:
        """Tell whether a handled event changes what comes after the iteration that runs now."""
        free_blocks, table = self._pool.free_blocks, self._table
        return (
            free_blocks < self._blocks_to_come
            or (self._some_wait and (free_blocks, len(table)) != self._held)
            or (table.has_pending_free and any(sequence.pending_free for sequence in self._run))
            or (isinstance(event, _MAY_JOIN) and any(s.is_runnable and not s.in_iteration for s in table))
        )

    def _iterations_counted(self, event: c.IterationsCounted, now: float) -> None:
        """Count tokens without ids; no sequence ends before its length."""
        self.finished += event.steps
        if not self._count(event.steps, ended=event.ended):
            return
        self._prefill_budget.ended(now)
        if event.steps > 1:
            self._advance(event.steps)
        members = self._table.end_iteration()
        self._examination.succeeded(members)
        if event.steps == 1:
            self._count_computed(members, now)
            members = [member for member in members if _had_last_known_token_computed(member[0])]
            for sequence, _ in members:
                sequence.count_tokens(1)
        for sequence, _ in members:
            if sequence.remaining_tokens <= 0 or sequence.produced_here == 1:
                self._token_counted(sequence, now)

    def _iteration_failed(self, event: c.IterationFailed, now: float) -> None:
        self._count(1, ended=True)
        super()._iteration_failed(event, now)

    def _token_counted(self, sequence: Sequence, now: float) -> None:
        is_last = sequence.remaining_tokens <= 0
        finish_reason = FinishReason.LENGTH if is_last else None
        self._publish(sequence, sequence.output_tokens - (not is_last), None, finish_reason)
        self._after_token(sequence, finish_reason, UNNAMED_TOKEN, now)

    def _count(self, steps: int, *, ended: bool) -> bool:
        """Note that `steps` iterations of the order ended, allocate the begun ones' blocks; return whether it is over."""
        is_over = ended or steps >= self._steps_left
        self._steps_left -= steps
        if self._blocks_to_come:
            self._grow(steps - 1 if is_over else steps)
        self._held = (self._pool.free_blocks, len(self._table))
        if is_over:
            self._steps_left = 0
        else:
            self._advance(steps)
        return is_over

    def _advance(self, steps: int) -> None:
        for sequence in self._run:
            sequence.computed_tokens += steps
            sequence.known_tokens += steps
            sequence.output_tokens += steps
            sequence.produced_here += steps

    def _grow(self, iterations: int) -> None:
        """Allocate the blocks of so many more iterations; named blocks in the order in which single iterations would."""
        size, free_before = self._pool.block_size, self._pool.free_blocks
        if isinstance(self._pool, CountedBlockPool):
            for sequence in self._run:
                if sequence.known_tokens + iterations > size * len(sequence.block_ids):
                    self._table.extend(sequence, sequence.known_tokens + iterations)
        else:
            crossings = [
                (iteration, place)
                for place, sequence in enumerate(self._run)
                for iteration in range(size * len(sequence.block_ids) - sequence.known_tokens + 1, iterations + 1, size)
            ]
            for _, place in sorted(crossings):
                sequence = self._run[place]
                self._table.extend(sequence, size * len(sequence.block_ids) + 1)
        self._blocks_to_come -= free_before - self._pool.free_blocks


def _had_last_known_token_computed(sequence: Sequence) -> bool:
    return sequence.computed_tokens == sequence.known_tokens
