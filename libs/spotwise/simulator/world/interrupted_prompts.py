"""Prompts interrupted at the end of a quantum and recomputed from the start in the next queue (MLFQ-preemption, FastServe,
section 6.3): a series of prompts without answers, each as long as a queue's quantum allows, then the whole prompt in the
first queue long enough for it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from spotwise.core.costs.cost_model import BatchShape, LinearIterationCost, TableIterationCost, pairs
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy


@dataclass(frozen=True, slots=True)
class InterruptedPrompts:
    """The parts of prompts that are computed and lost, by the iterations' `cost` and the quanta of `queues`."""

    cost: LinearIterationCost | TableIterationCost
    queues: MlfqPolicy

    def lost_parts(self, prompt_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a prompt that are computed and lost, by queue; a quantum too short for one token loses none."""
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
