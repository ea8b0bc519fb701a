"""Prompts that are interrupted and computed again: what a queue does that preempts without a look at the prompt.

Law: with MLFQ-preemption every job joins Q1, and a prompt that is not computed by the end of its queue's quantum is
interrupted: what was computed of it is lost, it goes to the back of the next queue and begins again there. So a job is, one
after the other, a prompt as long as Q1's quantum allows, one as long as Q2's does, and so on, each of which ends without an
answer, and in the end the whole prompt in the first queue whose quantum is as long as it. Each of these joins, by skip-join,
just the queue in which the interrupted job would stand: the baseline is the scheduler that it is held against, asked for wasted
work as well.

Source: MLFQ-preemption, FastServe, section 6.3.

Invariants: a prompt that the first quantum is long enough for is not interrupted; parts grow.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from spotwise.core.cost_model import BatchShape, LinearIterationCost, TableIterationCost, pairs
from spotwise.core.mlfq import MlfqPolicy


@dataclass(frozen=True, slots=True)
class InterruptedPrompts:
    """What is lost of prompts.

    Attributes:
        cost: of iterations.
        queues: whose quanta interrupt.
    """

    cost: LinearIterationCost | TableIterationCost
    queues: MlfqPolicy

    def lost_parts(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return how many tokens of a prompt are computed in vain, queue by queue.

        A queue whose quantum is too short for a single token loses nothing: it has not begun.
        """
        parts = []
        for queue in range(1, self.queues.queues):
            quantum_s = self.queues.quantum_s(queue)
            if quantum_s >= self._prompt_s(prompt_tokens):
                break
            if part := bisect_right(range(1, prompt_tokens), quantum_s, key=self._prompt_s):
                parts.append(part)
        return tuple(parts)

    def _prompt_s(self, tokens: int) -> float:
        return self.cost.iteration_s(BatchShape(tokens, pairs(0, tokens)))
