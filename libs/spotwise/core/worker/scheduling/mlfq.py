"""Skip-join multi-level feedback queue: least attained service first, without knowing output lengths.

Law: queues Q1 (the top) to Qn have quanta that grow by a ratio; Q1's is about the shortest iteration.
A job joins the highest queue whose quantum covers its first iteration, and is charged what its iterations cost alone.
A used-up quantum demotes it to the back of the next queue that covers its next iteration.
A job that waits `starve_limit_s` is promoted to Q1, with extra quantum where its next iteration exceeds Q1's.
A job that moves keeps its level; one that is restarted joins no higher than its attained service allows.

Source: FastServe (Wu et al., 2023), section 4.1 and algorithm 1, with errata: a quantum equal to the iteration suffices (the
text has "larger"); extra quantum goes to iterations longer than Q1's (one edition has shorter); `r` in line 20 is the job.
ENST, section 4.2: the sum is over jobs that come first, from their queue down to this job's, less their used quanta, over the
batch width (the paper's formula has the queue numbers reversed and lacks the width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.requests.record import QueueLevel


@dataclass(frozen=True, slots=True)
class MlfqPolicy:
    """The queues; in the last one, a used-up quantum sends a job to the back.

    Attributes:
        quantum_ratio: ratio of each queue's quantum to that of the queue above.
        starve_limit_s: seconds that a job waits below Q1 at most; infinite promotes none.
        skips: if not, every job joins Q1: plain MLFQ, a baseline (section 6.3).
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
            raise ValueError("starve_limit_s must be above 0; inf promotes none")

    def quantum_s(self, queue: int) -> float:
        """Return the quantum of a queue, 1 the top."""
        return float(self.first_quantum_s * self.quantum_ratio ** (queue - 1))

    def level_of(self, queue_state: QueueState) -> QueueLevel:
        """Return the level that moves with a job; extra quantum counts as used first."""
        used_s = max(0.0, queue_state.used_s - queue_state.extra_s)
        return QueueLevel(queue_state.queue, min(1.0, used_s / self.quantum_s(queue_state.queue)))


@dataclass(slots=True)
class QueueState:
    """A job's place in the queues: its queue, 1 the top, and in it its `place`, the lower the earlier.

    Attributes:
        used_s: service since it came to its queue, or to its back.
        extra_s: allowed beyond the queue's quantum.
        waits_since_s: when it joined, or when its last iteration ended.
    """

    queue: int
    place: int
    waits_since_s: float
    used_s: float = 0.0
    extra_s: float = 0.0

    @property
    def rank(self) -> tuple[int, int]:
        """The key of the order: the lowest runs first."""
        return self.queue, self.place


class SkipJoinMLFQ:
    """The rules; a job's `QueueState` is kept with the job."""

    def __init__(self, policy: MlfqPolicy) -> None:
        self.policy = policy
        self._quanta_s = [policy.quantum_s(queue) for queue in range(1, policy.queues + 1)]
        #: Seconds of service from Q1's front to that of each queue.
        self._above_s = [0.0]
        for quantum_s in self._quanta_s[:-1]:
            self._above_s.append(self._above_s[-1] + quantum_s)
        self._places = 0

    def joined(self, first_iteration_s: float, now: float, attained_s: float = 0.0) -> QueueState:
        """Return the state of a new job, by its first iteration and by the service it attained before."""
        first = self._queue_for(first_iteration_s, above=0) if self.policy.skips else 1
        queue = max(first, self.queue_after(attained_s))
        return QueueState(queue, self._next_place(), now)

    def moved_in(self, level: QueueLevel, now: float) -> QueueState:
        """Return the state of a job from another machine: at the back of its queue, or of the last, with its share used."""
        queue = min(level.queue, self.policy.queues)
        return QueueState(queue, self._next_place(), now, level.used * self._quanta_s[queue - 1])

    def queue_after(self, attained_s: float) -> int:
        """Return the queue of a job with so much service since it joined Q1."""
        queue = 1
        while queue < self.policy.queues and attained_s >= self._above_s[queue]:
            queue += 1
        return queue

    def charge(self, queue_state: QueueState, service_s: float, next_iteration_s: float, now: float) -> None:
        """Charge a job `service_s`, the cost of an ended iteration for it alone; demote it if its quantum is used up."""
        queue_state.used_s += service_s
        queue_state.waits_since_s = now
        if queue_state.used_s >= self._quanta_s[queue_state.queue - 1] + queue_state.extra_s:
            self._move(queue_state, self._queue_for(next_iteration_s, above=queue_state.queue), 0.0)

    def is_starving(self, queue_state: QueueState, now: float) -> bool:
        """Tell whether a waiting job is to be promoted."""
        return queue_state.queue > 1 and now - queue_state.waits_since_s >= self.policy.starve_limit_s

    def promote(self, queue_state: QueueState, next_iteration_s: float) -> None:
        """Promote a starving job to Q1, with extra quantum where its next iteration exceeds Q1's."""
        self._move(queue_state, 1, next_iteration_s if next_iteration_s > self._quanta_s[0] else 0.0)

    def next_runs_s(self, ordered: Sequence[QueueState], width: int, now: float) -> list[float]:
        """Return in how many seconds each job is expected to run (ENST); all jobs by `rank`, `width` of them at once."""
        runs_s = []
        ahead_above = 0  # jobs in higher queues
        had_s = had_above_s = 0.0  # attained service of all earlier jobs, and of those in higher queues
        queue = 0
        for ahead, queue_state in enumerate(ordered):
            if queue_state.queue != queue:
                queue, ahead_above, had_above_s = queue_state.queue, ahead, had_s
            above_s, quantum_s = self._above_s[queue - 1], self._quanta_s[queue - 1]
            # Jobs above run until they are demoted to this queue, behind the job; jobs ahead in it until they leave it.
            ahead_s = ahead_above * above_s - had_above_s
            ahead_s += (ahead - ahead_above) * (above_s + quantum_s) - (had_s - had_above_s)
            starves_s = max(0.0, self.policy.starve_limit_s - (now - queue_state.waits_since_s))
            runs_s.append(min(max(0.0, ahead_s) / width, starves_s))
            had_s += above_s + min(queue_state.used_s, quantum_s)
        return runs_s

    def quanta_left_s(self, queue_states: Sequence[QueueState]) -> float:
        """Return the seconds of service until all these jobs are demoted."""
        return sum(max(0.0, self._quanta_s[each.queue - 1] - each.used_s) for each in queue_states)

    def _queue_for(self, iteration_s: float, above: int) -> int:
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
