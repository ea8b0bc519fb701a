"""How many iterations one order is.

Law: where tokens carry no ids, nobody looks at each of them, and one order may stand for many iterations of the same
decodes: for those that would be ordered one by one if nothing happened meanwhile. So it ends with the iteration in which a
sequence reaches its `max_new_tokens`, or has its first token here, which is published when it is there; before one for which
the free blocks do not suffice, because somebody would be preempted for it; and after one iteration where a prompt could
preempt as time goes by, or somebody who waits could have the room that a preemption has left. If somebody becomes runnable,
a member of the batch is given up, the blocks that the run still needs are taken, or anything at all moves while somebody
waits, the order ends with the iteration that runs then.

The blocks of an iteration are taken when the iterations before it are counted, in the order in which single ones would take
them, so that everybody sees the free blocks that there would be.

Invariant: as long as the engine counts what has ended before it tells of anything else, batches, block tables, preemptions and
endings are those of `counted_steps=1`, iteration by iteration, whatever comes when.
"""

from __future__ import annotations

from bisect import bisect_right

from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable

#: Events after which somebody may be runnable who was not.
_MAY_JOIN = (c.RecordLoaded, c.KvArrived)


class CountedRuns:
    """Bounds orders of several iterations, and follows the one in flight."""

    def __init__(self, table: SequenceTable, policy: WorkerPolicy) -> None:
        self._table = table
        self._pool = table.pool
        self._most_steps = policy.counted_steps
        self._members: list[Sequence] = []
        self._left = 0  #: iterations ordered and not counted
        self._blocks_to_come = 0  #: that these take
        self._somebody_waits = False
        self._held = (0, 0)  #: free blocks and sequences, as far as this run accounts for them

    def begin(self, members: list[tuple[Sequence, int]], *, somebody_waits: bool, is_settled: bool) -> int:
        """Return how many iterations of these members, each with its tokens of the first, may be ordered, and follow them.

        Args:
            members: of the batch, in its order.
            somebody_waits: who is runnable and has no row.
            is_settled: with nothing new these stay without one: no prompt among them preempts once it has waited long enough,
                and nobody of them finds the room that a preemption just left.
        """
        self._left, self._blocks_to_come = 1, 0
        if self._most_steps == 1 or not is_settled:
            return 1
        steps = self._most_steps
        for sequence, _ in members:
            if not sequence.produced_here or sequence.known_tokens - sequence.computed_tokens != 1:
                return 1
            left = sequence.max_new_tokens - sequence.output_tokens
            if left < steps:
                steps = left
        self._members = [sequence for sequence, _ in members]
        self._left = self._within_free_blocks(steps)
        self._somebody_waits = somebody_waits
        self._held = (self._pool.free_blocks, len(self._table))
        return self._left

    def _within_free_blocks(self, steps: int) -> int:
        """Return for how many iterations, of `steps` at most, the free blocks suffice; for the first there are blocks."""
        if self._growth(steps) > self._pool.free_blocks:
            steps = bisect_right(range(1, steps), self._pool.free_blocks, key=self._growth)
        self._blocks_to_come = self._growth(steps)
        return steps

    def _growth(self, steps: int) -> int:
        """Blocks that the members lack for all but the first of so many iterations."""
        size, growth = self._pool.block_size, 0
        for sequence in self._members:
            lacking = sequence.known_tokens + steps - 1 - size * len(sequence.block_ids)
            if lacking > 0:
                growth -= -lacking // size
        return growth

    def count(self, steps: int, *, ended: bool) -> bool:
        """Note that so many iterations of the order in flight ended, and give the blocks of those that began.

        Returns:
            Whether the order is over; else all its members have a token more for each.
        """
        is_over = ended or steps >= self._left
        self._left -= steps
        if self._blocks_to_come:
            self._grow(steps - 1 if is_over else steps)
        self._held = (self._pool.free_blocks, len(self._table))
        if is_over:
            self._left = 0
        else:
            self.advance(steps)
        return is_over

    def advance(self, steps: int) -> None:
        """Let all members of a run be so many tokens further."""
        for sequence in self._members:
            sequence.computed_tokens += steps
            sequence.known_tokens += steps
            sequence.output_tokens += steps
            sequence.produced_here += steps

    def _grow(self, iterations: int) -> None:
        """Give the blocks of so many iterations more; where it matters who has which, one iteration after the other."""
        size, free_before = self._pool.block_size, self._pool.free_blocks
        if self._pool.has_names:
            crossings = [
                (iteration, place)
                for place, sequence in enumerate(self._members)
                for iteration in range(size * len(sequence.block_ids) - sequence.known_tokens + 1, iterations + 1, size)
            ]
            crossings.sort()
            for _, place in crossings:
                sequence = self._members[place]
                self._table.extend(sequence, size * len(sequence.block_ids) + 1)
        else:
            for sequence in self._members:
                if sequence.known_tokens + iterations > size * len(sequence.block_ids):
                    self._table.extend(sequence, sequence.known_tokens + iterations)
        self._blocks_to_come -= free_before - self._pool.free_blocks

    def is_ended_by(self, event: c.WorkerEvent) -> bool:
        """Tell, once for an order, whether an event that was handled changes what comes after the iteration that runs now."""
        if self._left <= 1:
            return False
        free_blocks, table = self._pool.free_blocks, self._table
        if (
            table.lost_a_member
            or free_blocks < self._blocks_to_come
            or (self._somebody_waits and (free_blocks, len(table)) != self._held)
            or (isinstance(event, _MAY_JOIN) and any(s.is_runnable and not s.in_iteration for s in table))
        ):
            self._left = 1
            return True
        return False
