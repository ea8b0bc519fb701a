"""A pipeline with static batches, as in SpotServe's artifact (section 2.1, l_exe; section 6.1, FasterTransformer): it prefills
the requests without KV at once, then decodes one token of each per step. Only whole steps count, prompts at their end; a
batch keeps its width until its last request ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.pipelines import BatchTimes, Job

#: Tolerance in seconds for a step's end, since floats are not exact.
_ROUNDING_S = 1e-9


@dataclass(slots=True, eq=False)
class ArtifactPipeline:
    """One pipeline of a configuration.

    Attributes:
        number: its index among the positions.
        serves_from_s: when its weights and KV have arrived.
        bound: requests assigned to it that wait for its batch to end.
        width: sequences that a step is paid for.
        epoch: raised when events scheduled for the pipeline become stale.
        began_s, fixed_s, step_s, steps: the running batch's start, seconds before the first step, seconds per step, and
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
        """Return a batch's seconds before the first step, seconds per step, and steps until a request ends."""
        times = self.times
        new = [job for job in jobs if not job.kv_tokens]
        fixed_s = 0.0
        if new:
            tokens = max(job.input_tokens + job.decoded for job in new)
            fixed_s = times.prompt_s(self.config, len(new), tokens)
        steps = min(job.output_tokens - job.decoded for job in jobs)
        return fixed_s, times.step_s(self.config, width), steps

    def begin(self, jobs: list[Job], now: float, width: int | None = None) -> None:
        """Start a batch now, or at `serves_from_s`; `width` is the sequences a step is paid for, where the batch was wider."""
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
        """Count what has been computed by now; the batch then is at its last whole step."""
        done = self.steps_by(now)
        if done is None:
            return
        for job in self.batch:
            if not job.kv_tokens:
                job.kv_tokens = job.input_tokens + job.decoded
            job.decoded += done
            job.kv_tokens += done
        self.began_s, self.fixed_s, self.steps = now, 0.0, self.steps - done

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return the requests whose KV it has, in their current state, without a change."""
        done = self.steps_by(now)
        found = []
        for job in self.batch:
            kv_tokens = job.kv_tokens or (job.input_tokens + job.decoded if done is not None else 0)
            extra = done or 0
            decoded = job.decoded + extra
            if kv_tokens and decoded < job.output_tokens:
                found.append(RunningRequest(str(job.number), kv_tokens + extra, decoded, job.output_tokens - decoded))
        return tuple(found)

    def take_all(self) -> list[Job]:
        """Take its batch away; call `settle` first, so that completed steps count."""
        jobs, self.batch = self.batch, []
        self.epoch += 1
        return jobs
