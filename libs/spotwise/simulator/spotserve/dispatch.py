"""Dispatches requests in arrival order, as SpotServe's artifact does. Bound: a request is assigned to the pipeline with the
fewest, running or waiting, below its batch limit (twice that for baselines), and an idle pipeline starts the largest power
of two of its own. Static: the idle pipeline with the lowest number fills its batch from one queue."""

from __future__ import annotations

import heapq
from typing import Protocol

from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.batches import ArtifactPipeline
from spotwise.simulator.spotserve.pipelines import Dispatcher, Job
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.spotserve.systems import BatchFormation, Reaction
from spotwise.simulator.world.events import EventQueue


class Accepts(Protocol):
    """Decides which batches a pipeline starts."""

    def accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        """Return whether an idle pipeline starts this batch now."""


class ArtifactDispatcher(Dispatcher[ArtifactPipeline]):
    """The queue and the pipelines; `judge` decides whether a batch starts."""

    def __init__(self, run: SpotRun, events: EventQueue) -> None:
        super().__init__(run, events)
        self.judge: Accepts | None = None
        self._waiting: list[tuple[int, Job]] = []
        self._binds = run.system.batching is BatchFormation.BOUND
        self._bound_batches = 1 if run.system.reaction is Reaction.MIGRATE else 2

    def arrive(self, job: Job) -> None:
        """Enqueue a request."""
        self._queue([job])
        self.look()

    def start(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> None:
        """Start a pipeline with the requests whose KV moves to it."""
        pipeline = ArtifactPipeline(number, config, self.times, serves_from_s=serves_from_s)
        self._pipelines[number] = pipeline
        if jobs:
            self._begin(pipeline, jobs)
        else:
            self._events.at(max(self._now, serves_from_s), self._look)

    def stop(self, number: int) -> list[Job]:
        """Stop a pipeline; return the requests whose KV it has."""
        pipeline = self._pipelines.pop(number)
        pipeline.settle(self._now)
        jobs = self._answer(pipeline)
        self._queue(pipeline.bound)
        pipeline.bound = []
        for job in jobs:
            job.interruptions += 1
        self._queue([job for job in jobs if not job.kv_tokens])
        return [job for job in jobs if job.kv_tokens]

    def recompute(self, jobs: list[Job], *, keep_answer: bool) -> None:
        """Enqueue requests whose KV is lost."""
        for job in jobs:
            job.lose_kv(keep_answer=keep_answer)
        self._queue(jobs)

    def look(self) -> None:
        """Dispatch waiting requests to pipelines."""
        if self._binds:
            self._bind()
        for pipeline in self.pipelines:
            waiting = pipeline.bound if self._binds else self._waiting
            if waiting and not pipeline.batch and pipeline.serves_from_s <= self._now:
                self._begin_new(pipeline)

    @property
    def _now(self) -> float:
        return self._events.now

    def _look(self, _: object) -> None:
        self.look()

    def _queue(self, jobs: list[Job]) -> None:
        for job in jobs:
            heapq.heappush(self._waiting, (job.number, job))

    def _accepts(self, pipeline: ArtifactPipeline, batch: list[Job]) -> bool:
        return self.judge is None or self.judge.accepts(pipeline, batch)

    def _bind(self) -> None:
        refused: list[int] = []
        while self._waiting:
            ready = [each for each in self.pipelines if each.serves_from_s <= self._now and each.number not in refused]
            ready = [each for each in ready if self._accepts(each, [self._waiting[0][1]])]
            if not ready:
                return
            chosen = min(ready, key=lambda pipeline: len(pipeline.batch) + len(pipeline.bound))
            size = len(chosen.batch) + len(chosen.bound)
            if size >= chosen.config.max_batch * (self._bound_batches if size else 1):
                return
            for _ in range(_power_of_two(min(len(self._waiting), chosen.config.max_batch))):
                chosen.bound.append(heapq.heappop(self._waiting)[1])
            if not chosen.batch:
                self._begin_new(chosen)
                if not chosen.batch:
                    refused.append(chosen.number)  # one request meets the deadline, this batch would not

    def _begin_new(self, pipeline: ArtifactPipeline) -> None:
        count = pipeline.config.max_batch
        if self._binds:
            jobs = pipeline.bound[: _power_of_two(min(count, len(pipeline.bound)))]
        else:
            jobs = [job for _, job in heapq.nsmallest(count, self._waiting)]
        if not self._accepts(pipeline, jobs):
            self._queue(pipeline.bound)
            pipeline.bound = []
            return
        if self._binds:
            del pipeline.bound[: len(jobs)]
        else:
            for _ in jobs:
                heapq.heappop(self._waiting)
        self._begin(pipeline, jobs)

    def _begin(self, pipeline: ArtifactPipeline, jobs: list[Job], width: int | None = None) -> None:
        pipeline.begin(jobs, self._now, width)
        self._events.at(max(self._now, pipeline.ends_s), self._ended, (pipeline, pipeline.epoch))

    def _ended(self, expected: tuple[ArtifactPipeline, int]) -> None:
        pipeline, epoch = expected
        if pipeline.epoch != epoch:
            return
        pipeline.settle(pipeline.ends_s)
        if rest := self._answer(pipeline):
            self._begin(pipeline, rest, width=pipeline.width)
        elif pipeline.bound:
            self._begin_new(pipeline)  # of its own, before more are sent to it
        self.look()

    def _answer(self, pipeline: ArtifactPipeline) -> list[Job]:
        """Take the batch away; record the requests that have their last token, and return the others."""
        jobs = pipeline.take_all()
        for job in jobs:
            if job.decoded >= job.output_tokens:
                job.finished_s, job.kv_tokens = self._now, 0
                self.unanswered -= 1
        return [job for job in jobs if job.finished_s is None]


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)
