"""Times at which iterations leave a pipeline: its stages have equal layers and take iterations in order (Orca, section 4.2)."""

from __future__ import annotations


class Pipeline:
    """The stages of one engine."""

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
