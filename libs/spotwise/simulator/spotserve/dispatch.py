"""Who computes which requests when: a queue, and pipelines that take batches from it.

Law: requests wait in the order in which they came, whatever became of their first attempts. A pipeline without a batch
takes as many of them as its batch may have, of free pipelines the first. Bound as in the artifact, requests are sent
ahead: to the first pipeline that has none, or else to the one that has fewest, running or waiting, as long as these are
fewer than its batch may have (twice that for the baselines); when its batch has ended, a pipeline begins the largest
power of two of its own. Made anew between iterations, batches are joined as soon as there is room. With phases apart,
pipelines for prompts take from the queue, and hold the KV that they computed until one that decodes has room and copies
it.

Source: SpotServe's artifact for requests that are bound; Orca for batches made anew; Splitwise for phases apart.

Invariants: a request is in the queue, or at one pipeline, or answered.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.batches import ArtifactPipeline, BatchTimes, Job
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import BatchFormation, Reaction
from spotwise.simulator.world.events import EventQueue


class Accepts(Protocol):
    """Knows which batches pay."""

    def accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        """Return whether a pipeline without a batch is to begin this one now."""


class Dispatcher:
    """The queue and the pipelines.

    Attributes:
        pace: what batches take.
        pipelines: those that stand, by number.
        unanswered: requests without their last token, those that have not come included.
        judge: who is asked before a batch begins.
    """

    def __init__(self, run: SpotRun, events: EventQueue) -> None:
        arrivals = run.arrivals
        self.pace = BatchTimes(run.model.cost, arrivals.input_tokens, arrivals.output_tokens, run.surroundings.slowdown)
        self.pipelines: dict[int, ArtifactPipeline] = {}
        self.unanswered = len(arrivals)
        self.judge: Accepts | None = None
        self._run, self._events = run, events
        self._waiting: list[tuple[int, Job]] = []
        self._joins = run.system.batching is BatchFormation.ITERATION
        self._binds = run.system.batching is BatchFormation.BOUND
        self._bound_batches = 1 if run.system.reaction is Reaction.MIGRATE else 2

    @property
    def _now(self) -> float:
        return self._events.now

    def standing(self) -> list[ArtifactPipeline]:
        """Return the pipelines by number."""
        return [self.pipelines[number] for number in sorted(self.pipelines)]

    def _accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        return self.judge is None or self.judge.accepts(pipeline, batch)

    def stand(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> ArtifactPipeline:
        """Put a pipeline up, with the requests that it goes on with."""
        pipeline = ArtifactPipeline(
            number, config, self.pace, number >= config.prompt_data, serves_from_s=serves_from_s
        )
        self.pipelines[number] = pipeline
        if jobs and pipeline.decodes:
            self._begin(pipeline, jobs)
        else:
            pipeline.held = jobs
            self._events.at(max(self._now, serves_from_s), self.look)
        return pipeline

    def halt(self, pipeline: ArtifactPipeline) -> list[Job]:
        """Take a pipeline down; return those whose KV it has, the others go back to the queue."""
        pipeline.settle(self._now)
        jobs = self._answer(pipeline) + pipeline.held
        self.queue(pipeline.pool)
        pipeline.held, pipeline.pool = [], []
        self.pipelines.pop(pipeline.number, None)
        for job in jobs:
            job.interruptions += 1
        self.queue([job for job in jobs if not job.kv_tokens])
        return [job for job in jobs if job.kv_tokens]

    def queue(self, jobs: list[Job]) -> None:
        """Let requests wait, each where it stands by its arrival."""
        for job in jobs:
            heapq.heappush(self._waiting, (job.number, job))

    def lose(self, jobs: list[Job], *, keep_answer: bool) -> None:
        """Let requests wait whose KV is lost."""
        for job in jobs:
            job.lose_kv(keep_answer=keep_answer)
        self.queue(jobs)

    def look(self, _: object = None) -> None:
        """Give every pipeline that can take requests those that it can take."""
        if self._binds:
            self._bind()
        for pipeline in self.standing():
            if not self._sources(pipeline):
                continue
            if not pipeline.is_busy:
                self._begin_new(pipeline)
            elif self._joins and pipeline.has_room and pipeline.joins_at is None:
                pipeline.joins_at = pipeline.epoch
                self._events.at(max(self._now, pipeline.boundary_s(self._now)), self._join, (pipeline, pipeline.epoch))

    def _bind(self) -> None:
        """Send requests ahead to pipelines."""
        refused: list[int] = []
        while self._waiting:
            ready = [
                each
                for each in self.standing()
                if each.serves_from_s <= self._now and not each.config.is_split and each.number not in refused
            ]
            ready = [each for each in ready if self._accepts(each, [self._waiting[0][1]])]
            if not ready:
                return
            chosen = min(ready, key=lambda pipeline: len(pipeline.jobs) + len(pipeline.pool))
            size = len(chosen.jobs) + len(chosen.pool)
            if size >= chosen.config.max_batch * (self._bound_batches if size else 1):
                return
            for _ in range(_power_of_two(min(len(self._waiting), chosen.config.max_batch))):
                chosen.pool.append(heapq.heappop(self._waiting)[1])
            if not chosen.is_busy:
                self._begin_new(chosen)
                if not chosen.is_busy:
                    refused.append(chosen.number)  # one would be done in time, so many would not

    def _is_bound(self, pipeline: ArtifactPipeline) -> bool:
        return self._binds and not pipeline.config.is_split

    def _sources(self, pipeline: ArtifactPipeline) -> bool:
        if pipeline.serves_from_s > self._now:
            return False
        if self._is_bound(pipeline):
            return bool(pipeline.pool)
        if not pipeline.decodes:
            return bool(self._waiting) and len(pipeline.held) <= pipeline.config.max_batch
        if pipeline.config.is_split:
            return any(other.held for other in self._holders())
        return bool(self._waiting)

    def _holders(self) -> list[ArtifactPipeline]:
        return [pipeline for pipeline in self.standing() if pipeline.held and pipeline.serves_from_s <= self._now]

    def _next_jobs(self, pipeline: ArtifactPipeline, count: int) -> list[Job]:
        """Return those that a pipeline would take next, without taking them."""
        if self._is_bound(pipeline):
            return pipeline.pool[: _power_of_two(min(count, len(pipeline.pool)))]
        if pipeline.decodes and pipeline.config.is_split:
            held = [job for other in self._holders() for job in other.held]
            return sorted(held, key=lambda job: job.number)[:count]
        return [job for _, job in heapq.nsmallest(count, self._waiting)]

    def _take(self, pipeline: ArtifactPipeline, jobs: list[Job]) -> None:
        if self._is_bound(pipeline):
            del pipeline.pool[: len(jobs)]
        elif pipeline.decodes and pipeline.config.is_split:
            for other in self._holders():
                other.held = [job for job in other.held if job not in jobs]
        else:
            for _ in jobs:
                heapq.heappop(self._waiting)

    def _begin_new(self, pipeline: ArtifactPipeline) -> None:
        jobs = self._next_jobs(pipeline, pipeline.config.max_batch)
        if self._accepts(pipeline, jobs):
            self._take(pipeline, jobs)
            self._begin(pipeline, jobs, self._copy_s(pipeline, jobs))
            self._look_again(pipeline)
        elif pipeline.pool:
            self.queue(pipeline.pool)
            pipeline.pool = []

    def _look_again(self, pipeline: ArtifactPipeline) -> None:
        """A pipeline for prompts may go on when its KV has been taken."""
        if pipeline.decodes and pipeline.config.is_split:
            self._events.at(self._now, self.look)

    def _copy_s(self, pipeline: ArtifactPipeline, jobs: list[Job]) -> float:
        """Return the seconds until KV from pipelines for prompts is there; their instances send side by side."""
        if not (pipeline.decodes and pipeline.config.is_split):
            return 0.0
        run = self._run
        instances = -(-pipeline.config.pipeline_devices // run.model.devices)
        kv_bytes = sum(job.kv_tokens for job in jobs) * run.model.shape.kv_token_bytes
        return kv_bytes / (instances * run.surroundings.network_bytes_per_s)

    def _begin(
        self, pipeline: ArtifactPipeline, jobs: list[Job], copy_s: float = 0.0, width: int | None = None
    ) -> None:
        pipeline.begin(jobs, self._now, copy_s, width)
        self._events.at(max(self._now, pipeline.ends_s), self._ended, (pipeline, pipeline.epoch))

    def _join(self, expected: tuple[ArtifactPipeline, int]) -> None:
        """Let requests join a batch between two iterations."""
        pipeline, epoch = expected
        if pipeline.epoch != epoch:
            return
        pipeline.joins_at = None
        jobs = (
            self._next_jobs(pipeline, pipeline.config.max_batch - len(pipeline.jobs)) if self._sources(pipeline) else []
        )
        if jobs and self._accepts(pipeline, jobs):
            pipeline.settle(self._now)
            rest = self._answer(pipeline)
            self._take(pipeline, jobs)
            self._begin(pipeline, rest + jobs, self._copy_s(pipeline, jobs))
            self._look_again(pipeline)

    def _ended(self, expected: tuple[ArtifactPipeline, int]) -> None:
        """Something that was begun is done: some have ended, or prompts are computed."""
        pipeline, epoch = expected
        if pipeline.epoch != epoch:
            return
        pipeline.settle(pipeline.ends_s)
        if not pipeline.decodes:
            pipeline.held += pipeline.take_all()
        elif rest := self._answer(pipeline):
            self._begin(pipeline, rest, width=None if self._joins else pipeline.width)
        elif pipeline.pool:
            self._begin_new(pipeline)  # of its own, before more are sent to it
        self.look()

    def _answer(self, pipeline: ArtifactPipeline) -> list[Job]:
        """Take those away that have their last token; return the others."""
        jobs = pipeline.take_all()
        for job in jobs:
            if job.decoded >= self.pace.output_tokens:
                job.finished_s, job.kv_tokens = self._now, 0
                self.unanswered -= 1
        return [job for job in jobs if job.finished_s is None]


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)
