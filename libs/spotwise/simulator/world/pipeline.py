"""When iterations leave a pipeline of stages: each holds as many layers, and takes iterations in order (Orca, section 4.2)."""

from __future__ import annotations


class Pipeline:
    """The stages of one engine.

    Args:
        stages: how many there are.

    Attributes:
        stages: how many there are.
    """

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self._free_s = [0.0] * stages

    def entered(self, seconds: float, now: float) -> float:
        """Take in an iteration that takes so long in all stages together, and return when it leaves the last one."""
        at_s, stage_s = now, seconds / self.stages
        for stage, free_s in enumerate(self._free_s):
            at_s = max(at_s, free_s) + stage_s
            self._free_s[stage] = at_s
        return at_s
