"""Prompts that are interrupted at the end of a quantum and computed again (MLFQ-preemption, FastServe, section 6.3).

What was computed of an interrupted prompt is lost, and the job starts over in the next queue. So it is a series of prompts,
each as long as a queue's quantum allows and without an answer, and in the end the whole prompt in the first queue long enough
for it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from spotwise.core.cost_model import BatchShape, LinearIterationCost, TableIterationCost, pairs
from spotwise.core.mlfq import MlfqPolicy


@dataclass(frozen=True, slots=True)
class InterruptedPrompts:
    """The parts of prompts that are computed and lost.

    Attributes:
        cost: of iterations.
        queues: their quanta interrupt.
    """

    cost: LinearIterationCost | TableIterationCost
    queues: MlfqPolicy

    def lost_parts(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a prompt that are computed and lost, queue by queue.

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
