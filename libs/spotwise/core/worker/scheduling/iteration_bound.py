"""Time limit of an iteration, beyond which its engine counts as stuck.

Law: the bound is never below `floor_s`. Prompts have `UNMEASURED` times the floor until one was measured, and all iterations
until `WARM_UP` have ended: the first ones compile kernels, allocate memory or wait for weights.
Afterwards it is `SLACK` times what as many tokens took of late, where that is longer than the floor.
"""

from __future__ import annotations

from spotwise.core.costs.cost_model import BatchShape

#: Iterations that end before the bound is taken from measurements.
WARM_UP = 8
#: Floors that an iteration without measurements may take.
UNMEASURED = 10
#: Times that an iteration may take longer than those before it did: contexts grow, and machines are shared.
SLACK = 20
#: Weight of the past at each measurement; it is forgotten within some dozens of iterations.
_KEPT = 0.95


class IterationBound:
    """The bound of one engine's iterations; `floor_s`: what it is at least."""

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._ended = 0
        self._decode_s = 0.0
        self._prompt_s = 0.0
        self._prompt_tokens = 0.0

    def limit_s(self, shape: BatchShape) -> float:
        """Return the bound of an iteration in seconds."""
        is_unmeasured = shape.prompt_tokens and not self._prompt_tokens
        if self._ended < WARM_UP or is_unmeasured:
            return UNMEASURED * self._floor_s
        prompt_s = shape.prompt_tokens * self._prompt_s / self._prompt_tokens if shape.prompt_tokens else 0.0
        return max(self._floor_s, SLACK * (self._decode_s + prompt_s))

    def ended(self, shape: BatchShape, seconds: float) -> None:
        """Note how long an iteration took."""
        self._ended += 1
        if shape.prompt_tokens:
            self._prompt_s = self._prompt_s * _KEPT + seconds
            self._prompt_tokens = self._prompt_tokens * _KEPT + shape.prompt_tokens
        else:
            self._decode_s = max(self._decode_s * _KEPT, seconds)
