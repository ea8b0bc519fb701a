"""Whose turn it is on a worker.

Law: between iterations all sequences that can run are put in order, and the first of them that have blocks and rows run. By
one of four disciplines:

- *fcfs*: as they arrived (Orca, section 4.1);
- *priority*: by the priority that the client gave, the lower number first; then as they arrived (vLLM's way);
- *srpt*: whoever has least left to compute, which only an oracle knows: the bound for all others, for simulations;
- *mlfq*: skip-join multi-level feedback queue (`mlfq.py`), below priorities and turns of tenants (`fairness.py`).

Invariants: the order depends on the sequences, what they were given, and when; equals keep the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from itertools import groupby
from typing import Protocol

from spotwise.core.cost_model import BatchShape, IterationCost, pairs
from spotwise.core.fairness import OUTPUT_TOKEN_WEIGHT, PROMPT_TOKEN_WEIGHT, VirtualTokenCounters
from spotwise.core.mlfq import MlfqPolicy, QueueState, SkipJoinMLFQ
from spotwise.core.worker.policy import Discipline, WorkerPolicy
from spotwise.core.worker.prefix_cache import PrefixCache
from spotwise.core.worker.sequence import Sequence
from spotwise.core.worker.sequence_table import SequenceTable

#: 30 s at the 20 ms that a decode takes alone with 13 billion parameters on an A100. With FastServe's 300 ms
#: all jobs starve as soon as there are more than a few batches of them, and take turns (docs/simulator-results.md has both).
STARVE_QUANTA = 1500


class SchedulingPolicy(Protocol):
    """Says whose turn it is."""

    def order(self, candidates: list[Sequence], now: float) -> list[Sequence]:
        """Return these, which came in order of arrival, in the order in which they are to run."""

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Note that an iteration ended in which these had so many tokens each; they are counted as computed already."""

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return in how many seconds each of these is expected to run, of all that can run, in their order."""

    def outranks_newcomers(self, sequence: Sequence, now: float) -> bool:
        """Tell whether one that can run has its turn before any that comes now."""

    def yields_to_newcomers(self, sequence: Sequence, now: float) -> bool:
        """Tell whether one that can run lets one pass that comes now, as far as anybody knows."""


def scheduling_policy_of(policy: WorkerPolicy, table: SequenceTable, prefixes: PrefixCache) -> SchedulingPolicy:
    """Return the order of a policy's discipline."""
    if policy.discipline is Discipline.MLFQ:
        assert policy.mlfq is not None and policy.cost is not None  # the policy has seen to it
        return MlfqSchedulingPolicy(policy.mlfq, policy.cost, policy.limits.max_num_seqs, table, prefixes)
    keys = {Discipline.PRIORITY: by_priority, Discipline.SRPT: by_tokens_left}
    return KeyedPolicy(keys.get(policy.discipline))


def queues_for(
    cost: IterationCost, quantum_ratio: float = 2.0, starve_limit_s: float | None = None, queues: int = 12
) -> MlfqPolicy:
    """Return the queues for a machine: the first quantum is a decode that is alone, the shortest iteration that there is.

    Args:
        cost: of its iterations.
        quantum_ratio: of each queue's quantum to that of the queue above.
        starve_limit_s: as in `MlfqPolicy`; `None` is so many first quanta.
        queues: how many.
    """
    first_quantum_s = cost.iteration_s(BatchShape(decodes=1, decode_context=1))
    if starve_limit_s is None:
        starve_limit_s = STARVE_QUANTA * first_quantum_s
    return MlfqPolicy(first_quantum_s, quantum_ratio, queues, starve_limit_s)


class KeyedPolicy:
    """Disciplines that are an order and nothing more: by a key, or by arrival where there is none."""

    def __init__(self, key: Callable[[Sequence], int] | None = None) -> None:
        self._key = key

    def order(self, candidates: list[Sequence], now: float) -> list[Sequence]:
        """Return these by the key; equals as they arrived."""
        return candidates if self._key is None else sorted(candidates, key=self._key)

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Nothing follows from it."""

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return how many come first, which is as good as any time to compare by."""
        return [float(place) for place in range(len(ordered))]

    def outranks_newcomers(self, sequence: Sequence, now: float) -> bool:
        """It came before; where another key decides, nobody knows the newcomers'."""
        return self._key is None

    def yields_to_newcomers(self, sequence: Sequence, now: float) -> bool:
        """Nobody knows of any newcomer that comes before."""
        return False


def by_priority(sequence: Sequence) -> int:
    """Return what the client gave."""
    return sequence.priority


def by_tokens_left(sequence: Sequence) -> int:
    """Return the tokens that are still to be computed."""
    return sequence.uncomputed_tokens + sequence.remaining_tokens


class MlfqSchedulingPolicy:
    """Skip-join multi-level feedback queue, below priorities and turns of tenants.

    Args:
        policy: the queues.
        cost: of iterations, by which service is charged: each job's own, as if it ran alone.
        width: sequences of a batch at most.
        table: all sequences; those in an iteration keep their tenants busy, too.
        prefixes: knows which tokens of a prompt need no computing.
    """

    def __init__(
        self, policy: MlfqPolicy, cost: IterationCost, width: int, table: SequenceTable, prefixes: PrefixCache
    ) -> None:
        self._queues = SkipJoinMLFQ(policy)
        self._cost = cost
        self._width = width
        self._table = table
        self._prefixes = prefixes
        self._tenants = VirtualTokenCounters()
        self._busy: frozenset[str] = frozenset()

    def order(self, candidates: list[Sequence], now: float) -> list[Sequence]:
        """Let newcomers join and starving ones be promoted, and return all in order."""
        for sequence in candidates:
            self._see_to(sequence, now)
        ordered = sorted(candidates, key=_place)
        busy = frozenset([sequence.tenant for sequence in self._table if sequence.is_runnable])
        if busy != self._busy:
            self._tenants.note_busy(sorted(busy), self._busy)
            self._busy = busy
        if len(busy) < 2:
            return ordered
        by_turns = [self._tenants.in_turn([*equals], _tenant, _worth) for _, equals in groupby(ordered, by_priority)]
        return [sequence for turns in by_turns for sequence in turns]

    def _see_to(self, sequence: Sequence, now: float) -> None:
        queue_state = sequence.queue_state
        if queue_state is None:
            sequence.queue_state = self._joined(sequence)
        elif self._queues.is_starving(queue_state, now):
            self._queues.promote(queue_state, self._next_iteration_s(sequence))

    def _joined(self, sequence: Sequence) -> QueueState:
        """Return where a sequence stands that was not here before; its wait began when it, or its KV, came.

        By its level, or as a new one. Then tokens that it has already were computed elsewhere, each by a decode.
        """
        since_s = sequence.arrived_s if sequence.started_s is None else sequence.started_s
        if sequence.arrived_level is not None:
            return self._queues.moved_in(sequence.arrived_level, since_s)
        attained_s = sequence.output_tokens * self._iteration_s(sequence.known_tokens - 1, 1)
        return self._queues.joined(self._next_iteration_s(sequence), since_s, attained_s)

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Charge each sequence with what its tokens cost by themselves, and its tenant with what they are worth."""
        for sequence, tokens in members:
            is_decode = tokens == 1 and sequence.computed_tokens > 1
            self._tenants.charge(sequence.tenant, 0 if is_decode else tokens, int(is_decode))
            if sequence.queue_state is not None:
                service_s = self._iteration_s(sequence.computed_tokens - tokens, tokens)
                self._queues.charge(sequence.queue_state, service_s, self._next_iteration_s(sequence), now)

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return their ENST, by the queues alone: turns of tenants are not foreseen, and lower priorities come later."""
        runs_s: dict[str, float] = {}
        before_s = 0.0
        for _, equals in groupby(sorted(ordered, key=_place), by_priority):
            sequences = [*equals]
            queue_states = [sequence.queue_state for sequence in sequences if sequence.queue_state is not None]
            for sequence, run_s in zip(
                sequences, self._queues.next_runs_s(queue_states, self._width, now), strict=True
            ):
                runs_s[sequence.sequence_id] = before_s + run_s
            before_s += self._queues.quanta_left_s(queue_states) / self._width
        return [runs_s[sequence.sequence_id] for sequence in ordered]

    def outranks_newcomers(self, sequence: Sequence, now: float) -> bool:
        """Once it has waited for as long as anybody should."""
        queue_state = sequence.queue_state
        return queue_state is not None and now - queue_state.waits_since_s >= self._queues.policy.starve_limit_s

    def yields_to_newcomers(self, sequence: Sequence, now: float) -> bool:
        """Below Q1, where most newcomers stand when their prompt is computed, unless it has waited for too long."""
        queue_state = sequence.queue_state
        return queue_state is not None and queue_state.queue > 1 and not self.outranks_newcomers(sequence, now)

    def _next_iteration_s(self, sequence: Sequence) -> float:
        """Return what is computed next of a sequence, whole: its uncached prompt, or one token."""
        computed = sequence.computed_tokens
        if not computed:
            reusable = len(self._prefixes.reusable_blocks(sequence))
            reusable += len(self._prefixes.fetchable_blocks(sequence, reusable))
            computed = reusable * self._table.pool.block_size
        return self._iteration_s(computed, max(1, sequence.known_tokens - computed))

    def _iteration_s(self, first_position: int, tokens: int) -> float:
        if tokens == 1 and first_position > 0:
            return self._cost.iteration_s(BatchShape(decodes=1, decode_context=first_position + 1))
        return self._cost.iteration_s(BatchShape(tokens, pairs(first_position, tokens)))


def _place(sequence: Sequence) -> tuple[int, int, int]:
    queue_state = sequence.queue_state
    assert queue_state is not None  # whoever is ordered has joined
    return sequence.priority, *queue_state.rank


def _tenant(sequence: Sequence) -> str:
    return sequence.tenant


def _worth(sequence: Sequence) -> float:
    return OUTPUT_TOKEN_WEIGHT if sequence.is_decoding else PROMPT_TOKEN_WEIGHT * sequence.uncomputed_tokens
