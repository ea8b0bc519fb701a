"""An order of a worker's role, and when each of its iterations ends. Iterations follow one another without a pause, each row's
context one token longer. Ends are computed a few at a time, since most long orders are cut short; in a pipeline an order is
one iteration through all stages."""

from __future__ import annotations

from collections import deque

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import BatchShape, IterationCost

#: Iterations computed at a time.
_AHEAD = 8


class Pipeline:
    """The stages of one engine, which have equal layers and take iterations in order (Orca, section 4.2)."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self._free_s = [0.0] * stages

    def entered(self, seconds: float, now: float) -> float:
        """Accept an iteration of so many seconds over all stages, and return when it leaves the last one."""
        at_s, stage_s = now, seconds / self.stages
        for stage, free_s in enumerate(self._free_s):
            at_s = max(at_s, free_s) + stage_s
            self._free_s[stage] = at_s
        return at_s


class IterationOrder:
    """Iterations that run, one after the other.

    Attributes:
        shape: batch of the first iteration.
        counted_s: end of the last iteration taken, or start of the first one; in a pipeline, of its last stage.
        look_s: next time with something to do: no later than the end of the last iteration.

    Args:
        batch: rows of the first iteration.
        steps: number of iterations.
        cost: costs of the machine.
        now: start of the first iteration.
        pipeline: the engine's pipeline; `None` where nothing else runs meanwhile.
    """

    def __init__(
        self, batch: Batch, steps: int, cost: IterationCost, now: float, pipeline: Pipeline | None = None
    ) -> None:
        self.batch = batch
        self.shape = BatchShape.of(batch)
        self.counted_s = self.look_s = now
        self._cost = cost
        self._steps = steps
        self._planned = 0
        self._ends: deque[float] = deque()
        if pipeline is None:
            self.plan()
        else:
            self._enter(pipeline)

    @property
    def is_planned(self) -> bool:
        """Whether the ends of all its iterations are computed: the last is at `look_s`."""
        return self._planned == self._steps

    @property
    def next_end_s(self) -> float:
        """End of the running iteration; of an order that is not over."""
        return self._ends[0] if self._ends else self.look_s

    @property
    def is_over(self) -> bool:
        """Whether all its iterations were taken."""
        return self.is_planned and not self._ends

    def _enter(self, pipeline: Pipeline) -> None:
        seconds = self._cost.iteration_s(self.shape)
        self.look_s = pipeline.entered(seconds, self.look_s)
        self.counted_s = self.look_s - seconds / pipeline.stages
        self._ends.append(self.look_s)
        self._planned = 1

    def plan(self) -> None:
        """Compute the ends of further iterations."""
        shape, end_s, cost = self.shape, self.look_s, self._cost
        for number in range(self._planned, min(self._planned + _AHEAD, self._steps)):
            if number:
                context = self.shape.decode_context + number * shape.decodes
                shape = BatchShape(0, 0.0, shape.decodes, context)
            end_s += cost.iteration_s(shape)
            self._ends.append(end_s)
            self._planned += 1
        self.look_s = end_s

    def take_ended(self, now: float) -> list[float]:
        """Return the ends of the iterations that ended by `now` and were not taken before."""
        while self.look_s <= now and not self.is_planned:
            self.plan()
        taken, ends = [], self._ends
        while ends and ends[0] <= now:
            taken.append(ends.popleft())
        if taken:
            self.counted_s = taken[-1]
        return taken

    def cut(self) -> None:
        """End with the running iteration; take what has ended first."""
        while len(self._ends) > 1:
            self._ends.pop()
            self._planned -= 1
        self._steps = self._planned
        self.look_s = self._ends[0]
