"""When iterations leave a pipeline of stages.

Law: each stage holds as many layers as any other, so an iteration takes an equal part of its whole time in each. A stage takes
iterations in the order in which they were ordered, each when the stage before has done with it and the stage itself with the
iteration before. So a new iteration begins every stage time, as long as somebody orders one.

Source: Orca, section 4.2, figure 8; FastServe, section 4.3.

Invariants: iterations leave in the order in which they entered; one that is alone takes its whole time.
"""

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
