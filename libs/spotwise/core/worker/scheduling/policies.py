"""The scheduling policies by name, and the skip-join multi-level feedback queue with fairness among tenants.

Law: each tenant's counter sums the weighted tokens that it was served; rows go to the least counter among tenants with work.
Within a tenant the given order stays. A tenant that was idle is lifted to the least counter of busy tenants, or to the last
busy one's: idle time earns no credit. Tenants with work are always served; no capacity is kept back.
Source: virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), section 4.1, with its
weights; there it chooses newcomers, here the rows of each iteration.

Law: clients' priorities come first, then tenants' turns (`policies.py`), then the queues (`mlfq.py`).
A sequence is charged what its tokens cost alone; its tenant, what they are worth.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from spotwise.core.costs.cost_model import BatchShape, IterationCost, pairs
from spotwise.core.worker.kv.prefix_cache import PrefixCache
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy, QueueState, SkipJoinMLFQ
from spotwise.core.worker.scheduling.policy import (
    KeyedPolicy,
    NewSequence,
    SchedulingPolicy,
    by_priority,
    by_tokens_left,
)
from spotwise.core.worker.sequences.sequence import Sequence
from spotwise.core.worker.sequences.table import SequenceTable

PROMPT_TOKEN_WEIGHT = 1.0
OUTPUT_TOKEN_WEIGHT = 2.0

_Job = TypeVar("_Job")


class VirtualTokenCounters:
    """Counters by tenant; of idle tenants only those above the floor are kept."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._last_busy_served = 0.0

    def __len__(self) -> int:
        return len(self._served)

    def served(self, tenant: str) -> float:
        """Return a tenant's counter."""
        return self._served.get(tenant, 0.0)

    def at_arrival(self, tenant: str, busy: Collection[str]) -> float:
        """Return the counter that a tenant would have with a first job beside these; its own where it is one of them."""
        return max(self.served(tenant), self._floor(busy))

    def charge(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """Count tokens that a tenant was served."""
        worth = PROMPT_TOKEN_WEIGHT * prompt_tokens + OUTPUT_TOKEN_WEIGHT * output_tokens
        self._served[tenant] = self.served(tenant) + worth

    def note_busy(self, tenants: Collection[str], before: Collection[str]) -> None:
        """Note which tenants have work now, and had it `before`; new ones are lifted."""
        floor = self._floor([tenant for tenant in tenants if tenant in before])
        for tenant in tenants:
            if tenant not in before:
                self._served[tenant] = max(self.served(tenant), floor)
        for tenant in [tenant for tenant in self._served if tenant not in tenants]:
            if tenant in before:
                self._last_busy_served = max(self._last_busy_served, self._served[tenant])
            if self._served[tenant] <= floor:
                del self._served[tenant]

    def _floor(self, busy: Collection[str]) -> float:
        return min(map(self.served, busy), default=self._last_busy_served)

    def in_turn(
        self, jobs: Rows[_Job], tenant_of: Callable[[_Job], str], worth_of: Callable[[_Job], float]
    ) -> list[_Job]:
        """Return jobs, in order within each tenant, in order of rows; `worth_of`: weighted tokens of the next iteration."""
        queues: dict[str, deque[_Job]] = {}
        for job in jobs:
            queues.setdefault(tenant_of(job), deque()).append(job)
        if len(queues) < 2:
            return list(jobs)
        turns = [(self.served(tenant), number, tenant) for number, tenant in enumerate(queues)]
        heapq.heapify(turns)
        ordered = []
        while turns:
            served, number, tenant = turns[0]
            job = queues[tenant].popleft()
            ordered.append(job)
            if queues[tenant]:
                heapq.heapreplace(turns, (served + worth_of(job), number, tenant))
            else:
                heapq.heappop(turns)
        return ordered


#: The default starvation limit, in first quanta: 30 s at the 20 ms of a lone decode of 13 billion parameters on an A100. With
#: FastServe's 300 ms all jobs starve once they are more than a few batches (docs/simulator-results.md has both).
STARVE_QUANTA = 1500


def mlfq_policy_of(policy: WorkerPolicy, table: SequenceTable, prefixes: PrefixCache) -> MlfqSchedulingPolicy:
    """Return the queues of a worker."""
    assert policy.mlfq is not None and policy.cost is not None  # WorkerPolicy checks it
    return MlfqSchedulingPolicy(policy.mlfq, policy.cost, policy.limits.max_num_seqs, table, prefixes)


def queues_for(
    cost: IterationCost, quantum_ratio: float = 2.0, starve_limit_s: float | None = None, queues: int = 12
) -> MlfqPolicy:
    """Return the queues for a machine; the first quantum is a lone decode, the shortest iteration.

    A `starve_limit_s` of `None` is `STARVE_QUANTA` first quanta.
    """
    first_quantum_s = cost.iteration_s(BatchShape(decodes=1, decode_context=1))
    if starve_limit_s is None:
        starve_limit_s = STARVE_QUANTA * first_quantum_s
    return MlfqPolicy(first_quantum_s, quantum_ratio, queues, starve_limit_s)


class MlfqSchedulingPolicy:
    """Orders by priority, tenant and queue, `width` sequences in a batch; `cost` is what service is charged by.

    `table` has all sequences: those in an iteration keep their tenants busy, too.
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
        """Enter newcomers into the queues, promote starving sequences, and return all in order."""
        for sequence in candidates:
            self._enter_or_promote(sequence, now)
        ordered = sorted(candidates, key=_place)
        busy = frozenset([sequence.tenant for sequence in self._table if sequence.is_runnable])
        if busy != self._busy:
            self._tenants.note_busy(sorted(busy), self._busy)
            self._busy = busy
        if len(busy) < 2:
            return ordered
        by_turns = [self._tenants.in_turn([*equals], _tenant, _worth) for _, equals in groupby(ordered, by_priority)]
        return [sequence for turns in by_turns for sequence in turns]

    def _enter_or_promote(self, sequence: Sequence, now: float) -> None:
        queue_state = sequence.queue_state
        if queue_state is None:
            sequence.queue_state = self._joined(sequence)
        elif self._queues.is_starving(queue_state, now):
            self._queues.promote(queue_state, self._next_iteration_s(sequence))

    def _joined(self, sequence: Sequence) -> QueueState:
        """Return a newcomer's queue state: by the level it came with, or by the decodes of its output so far."""
        since_s = sequence.arrived_s if sequence.started_s is None else sequence.started_s
        if sequence.arrived_level is not None:
            return self._queues.moved_in(sequence.arrived_level, since_s)
        attained_s = sequence.output_tokens * self._iteration_s(sequence.known_tokens - 1, 1)
        return self._queues.joined(self._next_iteration_s(sequence), since_s, attained_s)

    def ran(self, members: Rows[tuple[Sequence, int]], now: float) -> None:
        """Charge each sequence what its tokens cost alone, and its tenant what they are worth."""
        for sequence, tokens in members:
            is_decode = tokens == 1 and sequence.computed_tokens > 1
            self._tenants.charge(sequence.tenant, 0 if is_decode else tokens, int(is_decode))
            if sequence.queue_state is not None:
                service_s = self._iteration_s(sequence.computed_tokens - tokens, tokens)
                self._queues.charge(sequence.queue_state, service_s, self._next_iteration_s(sequence), now)

    def next_runs_s(self, ordered: Rows[Sequence], now: float) -> list[float]:
        """Return the sequences' ENST by priority and queue; tenants' turns are not foreseen."""
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

    def comes_before(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Tell whether its priority is higher; of equals, whether its tenant was served less, or it has starved."""
        if newcomer is not None:
            if sequence.priority != newcomer.priority:
                return sequence.priority < newcomer.priority
            if self._has_earlier_turn(sequence, newcomer):
                return True
        return self._has_starved(sequence, now)

    def yields_to(self, sequence: Sequence, newcomer: NewSequence | None, now: float) -> bool:
        """Tell whether it is below Q1, where most newcomers decode, and does not come before this one."""
        queue_state = sequence.queue_state
        if queue_state is None or queue_state.queue == 1 or self._has_starved(sequence, now):
            return False
        return not self.comes_before(sequence, newcomer, now)

    def _has_starved(self, sequence: Sequence, now: float) -> bool:
        queue_state = sequence.queue_state
        return queue_state is not None and now - queue_state.waits_since_s >= self._queues.policy.starve_limit_s

    def _has_earlier_turn(self, sequence: Sequence, newcomer: NewSequence) -> bool:
        if sequence.tenant == newcomer.tenant:
            return False
        return self._tenants.served(sequence.tenant) < self._tenants.at_arrival(newcomer.tenant, self._busy)

    def _next_iteration_s(self, sequence: Sequence) -> float:
        """Seconds of a sequence's next iteration alone: its whole uncached prompt, or one token."""
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
    assert queue_state is not None  # an ordered sequence has joined
    return sequence.priority, *queue_state.rank


def _tenant(sequence: Sequence) -> str:
    return sequence.tenant


def _worth(sequence: Sequence) -> float:
    return OUTPUT_TOKEN_WEIGHT if sequence.is_decoding else PROMPT_TOKEN_WEIGHT * sequence.uncomputed_tokens


@dataclass(frozen=True, slots=True)
class RegisteredPolicy:
    """One scheduling policy.

    Attributes:
        make: makes it for one worker.
        meaning: for users, in a few words.
        needs_oracle: for answers' lengths, known in simulation only.
    """

    make: Callable[[WorkerPolicy, SequenceTable, PrefixCache], SchedulingPolicy]
    meaning: str
    needs_oracle: bool = False


#: All that command line, settings, cluster files and the simulator know of scheduling policies.
SCHEDULING_POLICIES: dict[str, RegisteredPolicy] = {
    Scheduling.FCFS: RegisteredPolicy(lambda *_: KeyedPolicy(), "first come, first served"),
    Scheduling.PRIORITY: RegisteredPolicy(lambda *_: KeyedPolicy(by_priority), "of requests"),
    Scheduling.SRPT: RegisteredPolicy(
        lambda *_: KeyedPolicy(by_tokens_left), "shortest remaining processing time", needs_oracle=True
    ),
    Scheduling.MLFQ: RegisteredPolicy(
        mlfq_policy_of, "multi-level feedback queue: short requests do not wait behind long ones"
    ),
}


def served_policies() -> list[str]:
    """Return the names of the scheduling policies that live workers offer."""
    return [str(name) for name, registered in SCHEDULING_POLICIES.items() if not registered.needs_oracle]


def described_policies() -> str:
    """Return the policies of live workers with their meanings, as a setting describes them."""
    described = [f"{name} ({SCHEDULING_POLICIES[name].meaning})" for name in served_policies()]
    return f"{', '.join(described[:-1])}, or {described[-1]}"


def registered_policy(name: str) -> RegisteredPolicy:
    """Return the scheduling policy of that name.

    Raises:
        ValueError: there is none.
    """
    registered = SCHEDULING_POLICIES.get(name)
    if registered is None:
        raise ValueError(f"no scheduling policy is named {name!r}; there are {', '.join(SCHEDULING_POLICIES)}")
    return registered


def scheduling_policy_of(policy: WorkerPolicy, table: SequenceTable, prefixes: PrefixCache) -> SchedulingPolicy:
    """Return a worker's scheduling policy; `ValueError` where none has that name."""
    return registered_policy(policy.scheduling).make(policy, table, prefixes)
