"""Skip-join multi-level feedback queue: who has had least goes first, though nobody knows how long an answer will be.

Law: queues Q1 (the top) to Qn have quanta that grow by a ratio, the first as long as the shortest iteration. A job joins the
highest queue whose quantum is as long as its first iteration, which follows from its prompt; what it has had is charged to it
iteration by iteration, each with what that iteration costs for the job alone; when the quantum of its queue is used up it is
demoted to the next queue whose quantum is as long as its next iteration, to the back. A job that has waited for
`starve_limit_s` is promoted to Q1, with as much on top of the quantum as its next iteration takes, where that is longer than
the quantum: else the promotion would be used up in the middle of it. Who runs is whoever comes first in this order.

A job that moves to another machine takes its level along; one that is begun anew there, because its machine was lost, joins no
higher than where what it had before would have brought it: to be interrupted is no way to the front.

Source: FastServe (Wu et al., 2023), section 4.1 and algorithm 1, with these errata: a quantum that is just as long as an
iteration is long enough (">=", the text has "larger"); extra quantum goes to those whose next iteration is longer than Q1's
(one edition has shorter); `r` in line 20 is the job. ENST, section 4.2: the sum is over those that come first, from their queue
down to the job's own, over the width of a batch, without what they have had of their quantum already; the paper's formula has
the queue numbers the wrong way round and lacks the width.

Invariants: within a queue jobs stand in the order in which they came to it; a job's queue number falls only by promotion and
rises only when its quantum is used up; nobody waits `starve_limit_s` without being in Q1; the order depends on what was told
and when, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MlfqPolicy:
    """The queues.

    Attributes:
        first_quantum_s: of Q1: about the shortest iteration there is.
        quantum_ratio: of each queue's quantum to that of the queue above.
        queues: how many. In the last one, a job that has used its quantum up goes to the back.
        starve_limit_s: how long a job waits below Q1 at most; infinite, nobody is promoted.
        skips: without, every job joins Q1, whatever its first iteration takes: a plain MLFQ, to compare with (section 6.3).
    """

    first_quantum_s: float
    quantum_ratio: float = 2.0
    queues: int = 12
    starve_limit_s: float = math.inf
    skips: bool = True

    def __post_init__(self) -> None:
        if not self.first_quantum_s > 0.0:
            raise ValueError(f"first_quantum_s is {self.first_quantum_s}; it must be above 0")
        if not self.quantum_ratio > 1.0:
            raise ValueError(f"quantum_ratio is {self.quantum_ratio}; it must be above 1")
        if self.queues < 1:
            raise ValueError("queues must be at least 1")
        if not self.starve_limit_s > 0.0:
            raise ValueError("starve_limit_s must be above 0; inf promotes nobody")

    def quantum_s(self, queue: int) -> float:
        """Return the quantum of a queue, 1 the top."""
        return float(self.first_quantum_s * self.quantum_ratio ** (queue - 1))

    def level_of(self, queue_state: QueueState) -> QueueLevel:
        """Return what a job that stands so takes along; what it was given on top of a quantum is used first."""
        used_s = max(0.0, queue_state.used_s - queue_state.extra_s)
        return QueueLevel(queue_state.queue, min(1.0, used_s / self.quantum_s(queue_state.queue)))


@dataclass(frozen=True, slots=True)
class QueueLevel:
    """What a job takes along to another machine, in terms that mean the same on a faster one, whose quanta are shorter.

    Attributes:
        queue: where it stands, 1 the top.
        used: how much of that queue's quantum, 0 to 1.

    Raises:
        ValueError: there is no such queue, or no such part.
    """

    queue: int
    used: float

    def __post_init__(self) -> None:
        if self.queue < 1 or not 0.0 <= self.used <= 1.0:
            raise ValueError(f"no level: {self.used} of the quantum of queue {self.queue}")


@dataclass(slots=True)
class QueueState:
    """Where a job stands.

    Attributes:
        queue: its number, 1 the top.
        place: in its queue; whoever came earlier has a lower one.
        used_s: service since it came to its queue, or to its back.
        extra_s: what it may use beyond the queue's quantum.
        waits_since_s: when it joined, or when its last iteration ended.
    """

    queue: int
    place: int
    waits_since_s: float
    used_s: float = 0.0
    extra_s: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """What jobs are ordered by: whoever has the lowest runs first."""
        return self.queue, self.place


class SkipJoinMLFQ:
    """The rules; where a job stands is kept with the job, so nothing is left of those that have ended.

    Args:
        policy: the queues.
    """

    def __init__(self, policy: MlfqPolicy) -> None:
        self.policy = policy
        self._quanta_s = [policy.quantum_s(queue) for queue in range(1, policy.queues + 1)]
        #: Seconds of service from Q1's front to that of each queue.
        self._above_s = [0.0]
        for quantum_s in self._quanta_s[:-1]:
            self._above_s.append(self._above_s[-1] + quantum_s)
        self._places = 0

    def joined(self, first_iteration_s: float, now: float, attained_s: float = 0.0) -> QueueState:
        """Return where a new job stands, by what its first iteration takes and by the service that it had before, if any."""
        first = self._queue_for(first_iteration_s, above=0) if self.policy.skips else 1
        queue = max(first, self.queue_after(attained_s))
        return QueueState(queue, self._next_place(), now)

    def moved_in(self, level: QueueLevel, now: float) -> QueueState:
        """Return where a job stands that comes from another machine: in the queue where it arrived_level, at the back.

        Of that queue's quantum it has had as much, as a part, as of the quantum there; where there is no such queue it stands
        in the last.
        """
        queue = min(level.queue, self.policy.queues)
        return QueueState(queue, self._next_place(), now, level.used * self._quanta_s[queue - 1])

    def queue_after(self, attained_s: float) -> int:
        """Return in which queue a job stands that has had so much service since it joined Q1."""
        queue = 1
        while queue < self.policy.queues and attained_s >= self._above_s[queue]:
            queue += 1
        return queue

    def charge(self, queue_state: QueueState, service_s: float, next_iteration_s: float, now: float) -> None:
        """Note that an iteration of a job ended.

        Args:
            queue_state: the job's.
            service_s: what the iteration costs for this job alone.
            next_iteration_s: what its next one takes.
            now: Unix time.
        """
        queue_state.used_s += service_s
        queue_state.waits_since_s = now
        if queue_state.used_s >= self._quanta_s[queue_state.queue - 1] + queue_state.extra_s:
            self._move(queue_state, self._queue_for(next_iteration_s, above=queue_state.queue), 0.0)

    def is_starving(self, queue_state: QueueState, now: float) -> bool:
        """Tell whether a job that waits is to be promoted."""
        return queue_state.queue > 1 and now - queue_state.waits_since_s >= self.policy.starve_limit_s

    def promote(self, queue_state: QueueState, next_iteration_s: float) -> None:
        """Put a starving job into Q1, with what its next iteration takes beyond the quantum where that is too long for it."""
        self._move(queue_state, 1, next_iteration_s if next_iteration_s > self._quanta_s[0] else 0.0)

    def next_runs_s(self, ordered: Sequence[QueueState], width: int, now: float) -> list[float]:
        """Return in how many seconds each of these jobs is expected to run (ENST).

        Args:
            ordered: where all jobs stand, by `rank`.
            width: how many run at once.
            now: Unix time.
        """
        runs_s = []
        ahead_above = 0  # jobs in queues above, of those that come first
        had_s = had_above_s = 0.0  # service that all who come first have had since Q1's front, and that those have
        queue = 0
        for ahead, queue_state in enumerate(ordered):
            if queue_state.queue != queue:
                queue, ahead_above, had_above_s = queue_state.queue, ahead, had_s
            above_s, quantum_s = self._above_s[queue - 1], self._quanta_s[queue - 1]
            # Those above go on until they are demoted to this queue, behind the job; those ahead in it until they leave it.
            waited_for_s = ahead_above * above_s - had_above_s
            waited_for_s += (ahead - ahead_above) * (above_s + quantum_s) - (had_s - had_above_s)
            starves_s = max(0.0, self.policy.starve_limit_s - (now - queue_state.waits_since_s))
            runs_s.append(min(max(0.0, waited_for_s) / width, starves_s))
            had_s += above_s + min(queue_state.used_s, quantum_s)
        return runs_s

    def quanta_left_s(self, queue_states: Sequence[QueueState]) -> float:
        """Return how long these jobs may run before all of them are demoted."""
        return sum(max(0.0, self._quanta_s[each.queue - 1] - each.used_s) for each in queue_states)

    def _queue_for(self, iteration_s: float, above: int) -> int:
        """Return the highest queue below `above` whose quantum is as long as an iteration; the last where there is none."""
        for queue in range(above + 1, self.policy.queues):
            if self._quanta_s[queue - 1] >= iteration_s:
                return queue
        return self.policy.queues

    def _move(self, queue_state: QueueState, queue: int, extra_s: float) -> None:
        queue_state.queue, queue_state.place = queue, self._next_place()
        queue_state.used_s, queue_state.extra_s = 0.0, extra_s

    def _next_place(self) -> int:
        self._places += 1
        return self._places
