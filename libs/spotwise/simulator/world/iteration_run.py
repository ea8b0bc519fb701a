"""Iterations of one batch, one behind the other, timed without their members: a run lasts until a decode ends or the batch
changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from spotwise.core.costs.cost_model import BatchShape, DecodesCost
from spotwise.simulator.world.events import EventQueue

#: Iterations whose ends are computed at a time: most runs are cut short.
_AHEAD = 16


class IterationRun:
    """The run of one machine, if any.

    Attributes:
        shape: the first iteration's batch.
        rows: decodes in each of its iterations; 0 with prompts alone.
        steps: iterations that are not taken.
        began_s: start of the running one.

    Args:
        is_over: called at the end of the last iteration, which is not taken yet.
    """

    def __init__(self, queue: EventQueue, cost: DecodesCost, is_over: Callable[[], object]) -> None:
        self._queue, self._cost, self._is_over = queue, cost, is_over
        self.shape = BatchShape()
        self.rows = self.steps = 0
        self.began_s = 0.0
        self._ends: deque[float] = deque()  #: of the first iterations that are not taken
        self._planned_s = 0.0  #: the last of these ends
        self._planned_context = 0  #: of the iteration behind it

    @property
    def boundary_s(self) -> float:
        """End of the running iteration; now, where none runs."""
        return self._ends[0] if self.steps else self._queue.now

    def begin_decodes(self, shape: BatchShape, steps: int) -> None:
        """Begin so many iterations without prompts; each decode's context grows by a token in each."""
        self._begin(shape, steps)
        self._planned_s, self._planned_context = self.began_s, shape.decode_context
        self._plan()

    def begin_with_prompts(self, shape: BatchShape) -> float:
        """Begin a single iteration; return its end."""
        end_s = self._queue.now + self._cost.iteration_s(shape)
        self.begin_until(shape, end_s)
        return end_s

    def begin_until(self, shape: BatchShape, end_s: float) -> None:
        """Begin a single iteration that ends then."""
        self._begin(shape, 1)
        self._end_with(end_s)

    def _begin(self, shape: BatchShape, steps: int) -> None:
        self.shape, self.rows, self.steps, self.began_s = shape, shape.decodes, steps, self._queue.now

    def take_ended(self) -> Sequence[float]:
        """Take the iterations that have ended by now; return their ends."""
        now, ends = self._queue.now, self._ends
        if not ends or ends[0] > now:
            return ()
        taken: list[float] = []
        while ends and ends[0] <= now:
            taken.append(ends.popleft())
            if not ends and len(taken) < self.steps:
                self._plan(len(taken))
        self.steps -= len(taken)
        self.began_s = taken[-1]
        return taken

    def cut(self) -> None:
        """End with the running iteration."""
        if self.steps > 1:
            self.steps = 1
            end_s = self._ends[0]
            self._ends.clear()
            self._end_with(end_s)

    def stop(self) -> None:
        """Cancel the completion callback."""
        self.steps = 0

    def _end_with(self, end_s: float) -> None:
        self._ends.append(end_s)
        self._planned_s = end_s
        self._queue.at(end_s, self._look, end_s)

    def _plan(self, taken: int = 0) -> None:
        """Compute the ends of further iterations, and look at the last."""
        end_s, context, ends = self._planned_s, self._planned_context, self._ends
        alone_s, context_s = self._cost.decodes_s(self.rows)
        for _ in range(min(self.steps - taken - len(ends), _AHEAD)):
            end_s += alone_s + context_s * context
            context += self.rows
            ends.append(end_s)
        self._planned_s, self._planned_context = end_s, context
        self._queue.at(end_s, self._look, end_s)

    def _look(self, planned_s: float) -> None:
        if planned_s != self._planned_s or not self.steps:
            return  # it was cut, or is over
        if len(self._ends) < self.steps:
            self._plan()
        else:
            self._is_over()
