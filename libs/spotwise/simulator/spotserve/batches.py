"""A pipeline at work on a batch, as the engine under SpotServe's artifact works: one batch, from prompts to last tokens.

Law: a pipeline computes the prompts of those in its batch whose KV it does not have, all in one go, and then decodes
one token of each at a time. What has happened until some moment follows from when it began: whole steps count, a part
of a step does not, and of a prompt nothing counts before its end. A batch keeps its width: sequences that end early
cost until the last one ends, unless batches are made anew between iterations.

Source: SpotServe, section 2.1 (l_exe) and 6.1 (FasterTransformer's static batches).

Invariants: a request is in one batch at most; its decoded tokens never fall here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.execution import ExecutionCost

#: Seconds by which a step may seem to be unfinished because floats are not exact.
_ROUNDING_S = 1e-9


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way.

    Attributes:
        number: in the order of arrival.
        arrived_s: when it came.
        decoded: tokens that it has got, and keeps.
        kv_tokens: tokens whose KV a pipeline has; 0 where none has.
        finished_s: when it got its last one.
        interruptions: times that a batch with it was stopped, or moved with a pause.
        recomputed_tokens: tokens, of prompt and answer, that had been computed and were lost.
    """

    number: int
    arrived_s: float
    decoded: int = 0
    kv_tokens: int = 0
    finished_s: float | None = None
    interruptions: int = 0
    recomputed_tokens: int = 0

    def lose_kv(self, *, keep_answer: bool) -> None:
        """Forget the KV; and, where progress is not committed, the tokens."""
        self.recomputed_tokens += self.kv_tokens
        self.kv_tokens = 0
        if not keep_answer:
            self.decoded = 0

    def running(self, output_tokens: int) -> RunningRequest:
        """Return it as planning sees it."""
        return RunningRequest(str(self.number), self.kv_tokens, self.decoded, output_tokens - self.decoded)


class BatchTimes:
    """What batches take, for requests of one size."""

    def __init__(self, cost: ExecutionCost, input_tokens: int, output_tokens: int, slowdown: float) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self._cost, self._slowdown = cost, slowdown
        self._steps: dict[tuple[ParallelConfig, int], float] = {}
        self._prompts: dict[tuple[ParallelConfig, int, int], float] = {}

    def step_s(self, config: ParallelConfig, width: int) -> float:
        """Return the seconds of one token for each of `width` sequences."""
        key = (config, width)
        if key not in self._steps:
            self._steps[key] = self._cost.step_s(replace(config, max_batch=width)) * self._slowdown
        return self._steps[key]

    def prompt_s(self, config: ParallelConfig, width: int, tokens: int) -> float:
        """Return the seconds of the prompts of `width` sequences, of so many tokens each."""
        key = (config, width, tokens)
        if key not in self._prompts:
            self._prompts[key] = self._cost.prompt_s(replace(config, max_batch=width), tokens) * self._slowdown
        return self._prompts[key]


@dataclass(slots=True, eq=False)
class ArtifactPipeline:
    """One pipeline of a configuration.

    Attributes:
        number: of it, as positions count.
        config: what it is a part of.
        pace: what its batches take.
        decodes: whether it goes on to decode; one for prompts only does not.
        jobs: its batch.
        serves_from_s: when it is there, with weights and KV.
        pool: requests that are bound to it and wait.
        held: of one for prompts, those whose KV waits to be taken.
        joins_at: epoch in which requests are about to join; `None`: none are.
        width: sequences that a step is paid for.
        epoch: raised whenever what was expected of the future no longer holds.
        began_s, fixed_s, step_s, steps: what it does now: since when, the seconds before the first step, those of a step,
            and how many until one ends.
    """

    number: int
    config: ParallelConfig
    pace: BatchTimes
    decodes: bool = True
    jobs: list[Job] = field(default_factory=list)
    serves_from_s: float = 0.0
    pool: list[Job] = field(default_factory=list)
    held: list[Job] = field(default_factory=list)
    joins_at: int | None = None
    width: int = 0
    epoch: int = 0
    began_s: float = 0.0
    fixed_s: float = 0.0
    step_s: float = 0.0
    steps: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether it has a batch."""
        return bool(self.jobs)

    @property
    def has_room(self) -> bool:
        """Whether one more may join its batch."""
        return len(self.jobs) < self.config.max_batch

    @property
    def ends_s(self) -> float:
        """When the batch as it stands is done with what was begun."""
        return self.began_s + self.fixed_s + self.steps * self.step_s

    def planned(self, jobs: list[Job], width: int) -> tuple[float, float, int]:
        """Return what these would take as a batch: seconds before the first step, of a step, and steps until one has ended."""
        pace = self.pace
        new = [job for job in jobs if not job.kv_tokens]
        fixed_s = 0.0
        if new:
            tokens = pace.input_tokens + max(job.decoded for job in new)
            fixed_s = pace.prompt_s(self.config, len(new), tokens)
        steps = min(pace.output_tokens - job.decoded for job in jobs) if self.decodes else 0
        return fixed_s, pace.step_s(self.config, width), steps

    def begin(self, jobs: list[Job], now: float, copy_s: float = 0.0, width: int | None = None) -> None:
        """Work on these from now on, or from when it is there.

        Args:
            jobs: the batch.
            now: the time.
            copy_s: until KV from elsewhere has come.
            width: sequences that a step is paid for, where the batch was wider.
        """
        self.jobs = jobs
        self.width = len(jobs) if width is None else width
        self.fixed_s, self.step_s, self.steps = self.planned(jobs, self.width)
        self.fixed_s += copy_s
        self.began_s = max(now, self.serves_from_s)
        self.joins_at = None
        self.epoch += 1

    def steps_by(self, now: float) -> int | None:
        """Return the whole steps done by now; `None` while prompts are computed, or KV is awaited."""
        since_s = now - self.began_s - self.fixed_s
        if not self.jobs or since_s < -_ROUNDING_S:
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
        for job in self.jobs:
            if not job.kv_tokens:
                job.kv_tokens = self.pace.input_tokens + job.decoded
            job.decoded += done
            job.kv_tokens += done
        self.began_s, self.fixed_s, self.steps = now, 0.0, self.steps - done

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return those whose KV it has, as they are now, without a change."""
        done = self.steps_by(now)
        output = self.pace.output_tokens
        found = [job.running(output) for job in self.held]
        for job in self.jobs:
            kv_tokens = job.kv_tokens or (self.pace.input_tokens + job.decoded if done is not None else 0)
            extra = done or 0
            decoded = job.decoded + extra
            if kv_tokens and decoded < output:
                found.append(RunningRequest(str(job.number), kv_tokens + extra, decoded, output - decoded))
        return tuple(found)

    def take_all(self) -> list[Job]:
        """Take its batch away, not those that it holds; call `settle` before, for what is done to count."""
        jobs, self.jobs = self.jobs, []
        self.epoch += 1
        return jobs
