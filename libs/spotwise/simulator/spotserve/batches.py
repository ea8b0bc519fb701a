"""A pipeline at work on a batch, as the engine under SpotServe's artifact works: one batch, from prompts to last tokens.

It computes the prompts of the requests whose KV it lacks in one go, then decodes one token of each at a time. Whole steps
count, a part of a step does not, and of a prompt nothing counts before its end. A batch keeps its width: requests that end
early cost until the last one ends.

Source: SpotServe, section 2.1 (l_exe) and 6.1 (FasterTransformer's static batches).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.pipelines import BatchTimes, Job

#: Seconds by which a step may seem to be unfinished because floats are not exact.
_ROUNDING_S = 1e-9


@dataclass(slots=True, eq=False)
class ArtifactPipeline:
    """One pipeline of a configuration.

    Attributes:
        number: of it, as positions count.
        config: of which it is a part.
        times: of its batches.
        batch: requests that it computes.
        serves_from_s: when its weights and KV are there.
        bound: requests that are sent ahead to it and wait.
        width: sequences that a step is paid for.
        epoch: raised whenever what was expected of the future no longer holds.
        began_s, fixed_s, step_s, steps: its work now: its start, the seconds before the first step, those of a step, and the
            steps until a request ends.
    """

    number: int
    config: ParallelConfig
    times: BatchTimes
    batch: list[Job] = field(default_factory=list)
    serves_from_s: float = 0.0
    bound: list[Job] = field(default_factory=list)
    width: int = 0
    epoch: int = 0
    began_s: float = 0.0
    fixed_s: float = 0.0
    step_s: float = 0.0
    steps: int = 0

    @property
    def ends_s(self) -> float:
        """When the first request of the batch ends."""
        return self.began_s + self.fixed_s + self.steps * self.step_s

    def planned(self, jobs: list[Job], width: int) -> tuple[float, float, int]:
        """Return what a batch would take: seconds before the first step, of a step, and steps until a request ends."""
        times = self.times
        new = [job for job in jobs if not job.kv_tokens]
        fixed_s = 0.0
        if new:
            tokens = times.input_tokens + max(job.decoded for job in new)
            fixed_s = times.prompt_s(self.config, len(new), tokens)
        steps = min(times.output_tokens - job.decoded for job in jobs)
        return fixed_s, times.step_s(self.config, width), steps

    def begin(self, jobs: list[Job], now: float, width: int | None = None) -> None:
        """Compute a batch from now on, or from `serves_from_s`.

        Args:
            jobs: the batch.
            now: the time.
            width: sequences that a step is paid for, where the batch was wider.
        """
        self.batch = jobs
        self.width = len(jobs) if width is None else width
        self.fixed_s, self.step_s, self.steps = self.planned(jobs, self.width)
        self.began_s = max(now, self.serves_from_s)
        self.epoch += 1

    def steps_by(self, now: float) -> int | None:
        """Return the whole steps done by now; `None` while prompts are computed, or KV is awaited."""
        since_s = now - self.began_s - self.fixed_s
        if not self.batch or since_s < -_ROUNDING_S:
            return None
        return min(self.steps, int((since_s + _ROUNDING_S) / self.step_s))

    def boundary_s(self, now: float) -> float:
        """Return the end of the iteration that runs now."""
        done = self.steps_by(now)
        if done is None:
            return self.began_s + self.fixed_s
        end_s = self.began_s + self.fixed_s + done * self.step_s
        return end_s if end_s >= now - _ROUNDING_S else min(end_s + self.step_s, self.ends_s)

    def settle(self, now: float) -> None:
        """Count what has been computed by now; from now on the batch is as far as its last whole step."""
        done = self.steps_by(now)
        if done is None:
            return
        for job in self.batch:
            if not job.kv_tokens:
                job.kv_tokens = self.times.input_tokens + job.decoded
            job.decoded += done
            job.kv_tokens += done
        self.began_s, self.fixed_s, self.steps = now, 0.0, self.steps - done

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return the requests whose KV it has, as they are now, without a change."""
        done = self.steps_by(now)
        output = self.times.output_tokens
        found = []
        for job in self.batch:
            kv_tokens = job.kv_tokens or (self.times.input_tokens + job.decoded if done is not None else 0)
            extra = done or 0
            decoded = job.decoded + extra
            if kv_tokens and decoded < output:
                found.append(RunningRequest(str(job.number), kv_tokens + extra, decoded, output - decoded))
        return tuple(found)

    def take_all(self) -> list[Job]:
        """Take its batch away; call `settle` before, for what is done to count."""
        jobs, self.batch = self.batch, []
        self.epoch += 1
        return jobs
