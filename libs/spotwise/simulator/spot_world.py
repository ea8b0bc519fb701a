"""The world of SpotServe's paper: requests queue, pipelines work on batches, instances come and go.

Law: requests wait in the order in which they came, whatever became of their first attempts. A pipeline without a batch
takes as many of them as its batch may have, of free pipelines the first. With phases apart, pipelines for prompts take
from that queue, and hold the KV that they computed until one that decodes has room and has copied it. What happens when
the fleet changes is the system's own (`spot_migrations.py`, `spot_restarts.py`).

Source: SpotServe, sections 3 and 6.1; Splitwise for phases apart.

Invariants: a request is in the queue, or at one pipeline, or answered; the world ends when the trace is over and all
are answered.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from spotwise.core.parallel.arrivals import ArrivalWindow
from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.events import EventQueue
from spotwise.simulator.spot_batches import Job, Pace, Pipeline
from spotwise.simulator.spot_fleet import Fleet, FleetEvent, fleet_events
from spotwise.simulator.spot_migrations import Migrating
from spotwise.simulator.spot_restarts import Rerouting, Restarting
from spotwise.simulator.spot_runs import AnsweredRequest, ConfigChange, SpotOutcome, SpotRun
from spotwise.simulator.spot_systems import Batching, Reaction


class ServingSystem(Protocol):
    """What a system decides."""

    def fleet_changed(self, event: FleetEvent) -> None:
        """Hear what happened to instances; they are as they are afterwards."""

    def decide(self) -> None:
        """Look whether something has to change, after all that happened at this moment."""

    def accepts(self, pipeline: Pipeline, batch: list[Job]) -> bool:
        """Return whether a pipeline without a batch is to begin this one now."""


class SpotWorld:
    """One run.

    Attributes:
        run_: what it is a run of.
        events: the clock.
        fleet: who is there.
        pace: what batches take.
        pipelines: those that stand, by number.
        changes: of configurations so far.
    """

    def __init__(self, run: SpotRun) -> None:
        self.run_ = run
        self.events = EventQueue()
        self.fleet = Fleet(run.model.devices)
        surroundings, arrivals = run.surroundings, run.arrivals
        self.pace = Pace(run.model.cost, arrivals.input_tokens, arrivals.output_tokens, surroundings.slowdown)
        self.pipelines: dict[int, Pipeline] = {}
        self.changes: list[ConfigChange] = []
        self._jobs = [Job(number, at_s) for number, at_s in enumerate(arrivals.times_s)]
        self._unanswered = len(self._jobs)
        self._waiting: list[tuple[int, Job]] = []
        self._joins = run.system.batching is Batching.ITERATION
        self._binds = run.system.batching is Batching.BOUND
        self._bound_batches = 1 if run.system.reaction is Reaction.MIGRATE else 2
        self._rate = run.required_rate
        self._window = ArrivalWindow(surroundings.window_s)
        self._will_decide = False
        self.system = _system(self)

    @property
    def now(self) -> float:
        """The time."""
        return self.events.now

    def run(self) -> SpotOutcome:
        """Let everything happen.

        Raises:
            ValueError: requests stay unanswered.
        """
        run = self.run_
        surroundings = run.surroundings
        for event in fleet_events(
            run.trace, surroundings.grace_s, surroundings.announced_s, frozenset(run.on_demand_nodes)
        ):
            self.events.at(event.time_s, self.fleet_happens, event)
        for said in run.trace.events:
            if said.required_rate is not None:
                self.events.at(said.time_s, self._load_said, said.required_rate)
        for job in self._jobs:
            self.events.at(job.arrived_s, self._arrived, job)
        if run.required_rate is None and not any(said.required_rate for said in run.trace.events):
            self.events.at(surroundings.window_s, self._load_measured)
        self.events.run()
        if self._unanswered:
            raise ValueError(
                f"{run.trace.name}: {self._unanswered} requests of {len(self._jobs)} stay unanswered, since the last "
                f"{len(self.fleet.here())} instances cannot serve {run.model.shape.name}; use a trace with more of them, "
                "or a smaller model"
            )
        trace_end_s = run.trace.end_s
        ended_s = max([trace_end_s, *(job.finished_s or 0.0 for job in self._jobs)])
        requests = tuple(
            AnsweredRequest(job.arrived_s, job.finished_s or 0.0, job.interruptions, job.recomputed_tokens)
            for job in self._jobs
        )
        lives = self.fleet.paid_lives(ended_s)
        return SpotOutcome(requests, tuple(self.changes), lives, trace_end_s, ended_s, run.arrivals.output_tokens)

    # -- what systems use

    def rate(self) -> float:
        """Return the requests a second that are to be served."""
        return self._window.rate(self.now) if self._rate is None else self._rate

    def decide_soon(self, _: object = None) -> None:
        """Let the system decide once everything of this moment has happened."""
        if not self._will_decide:
            self._will_decide = True
            self.events.at(self.now, self._decide)

    def stand(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> Pipeline:
        """Put a pipeline up, with the requests that it goes on with."""
        pipeline = Pipeline(number, config, self.pace, number >= config.prompt_data, serves_from_s=serves_from_s)
        self.pipelines[number] = pipeline
        if jobs and pipeline.decodes:
            self._begin(pipeline, jobs)
        else:
            pipeline.held = jobs
            self.events.at(max(self.now, serves_from_s), self._look)
        return pipeline

    def halt(self, pipeline: Pipeline) -> list[Job]:
        """Take a pipeline down; return those whose KV it has, the others go back to the queue."""
        pipeline.settle(self.now)
        jobs = pipeline.take_all() + pipeline.held
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

    # -- what happens

    def fleet_happens(self, event: FleetEvent) -> None:
        """Let something happen to instances."""
        self.fleet.apply(event)
        self.system.fleet_changed(event)
        self.decide_soon()
        self._look()

    def _decide(self, _: object) -> None:
        self._will_decide = False
        self.system.decide()
        self._look()

    def _load_said(self, rate: float) -> None:
        self._rate = rate
        self.decide_soon()

    def _load_measured(self, _: object) -> None:
        self.decide_soon()
        if self._unanswered:
            self.events.at(self.now + self.run_.surroundings.window_s, self._load_measured)

    def _arrived(self, job: Job) -> None:
        self._window.add(self.now)
        self.queue([job])
        self._look()

    def _look(self, _: object = None) -> None:
        """Give every pipeline that can take requests those that it can take."""
        if self._binds:
            self._bind()
        for pipeline in list(self.pipelines.values()):
            if not self._sources(pipeline):
                continue
            if not pipeline.is_busy:
                self._begin_new(pipeline)
            elif self._joins and pipeline.has_room and pipeline.joins_at is None:
                pipeline.joins_at = pipeline.epoch
                self.events.at(max(self.now, pipeline.boundary_s(self.now)), self._join, (pipeline, pipeline.epoch))

    def _bind(self) -> None:
        """Send requests ahead to pipelines."""
        while self._waiting:
            ready = [
                each for each in self.pipelines.values() if not each.config.is_split and each.serves_from_s <= self.now
            ]
            ready = [each for each in ready if self.system.accepts(each, [self._waiting[0][1]])]
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

    def _is_bound(self, pipeline: Pipeline) -> bool:
        return self._binds and not pipeline.config.is_split

    def _sources(self, pipeline: Pipeline) -> bool:
        if pipeline.serves_from_s > self.now:
            return False
        if self._is_bound(pipeline):
            return bool(pipeline.pool)
        if not pipeline.decodes:
            return bool(self._waiting) and len(pipeline.held) <= pipeline.config.max_batch
        if pipeline.config.is_split:
            return any(other.held for other in self._holders())
        return bool(self._waiting)

    def _holders(self) -> list[Pipeline]:
        return [
            pipeline for pipeline in self.pipelines.values() if pipeline.held and pipeline.serves_from_s <= self.now
        ]

    def _next_jobs(self, pipeline: Pipeline, count: int) -> list[Job]:
        """Return those that a pipeline would take next, without taking them."""
        if self._is_bound(pipeline):
            return pipeline.pool[: _power_of_two(min(count, len(pipeline.pool)))]
        if pipeline.decodes and pipeline.config.is_split:
            held = [job for other in self._holders() for job in other.held]
            return sorted(held, key=lambda job: job.number)[:count]
        return [job for _, job in heapq.nsmallest(count, self._waiting)]

    def _take(self, pipeline: Pipeline, jobs: list[Job]) -> None:
        if self._is_bound(pipeline):
            del pipeline.pool[: len(jobs)]
        elif pipeline.decodes and pipeline.config.is_split:
            for other in self._holders():
                other.held = [job for job in other.held if job not in jobs]
        else:
            for _ in jobs:
                heapq.heappop(self._waiting)

    def _begin_new(self, pipeline: Pipeline) -> None:
        jobs = self._next_jobs(pipeline, pipeline.config.max_batch)
        if self.system.accepts(pipeline, jobs):
            self._take(pipeline, jobs)
            self._begin(pipeline, jobs, self._copy_s(pipeline, jobs))
            self._look_again(pipeline)
        elif pipeline.pool:
            self.queue(pipeline.pool)
            pipeline.pool = []

    def _look_again(self, pipeline: Pipeline) -> None:
        """A pipeline for prompts may go on when its KV has been taken."""
        if pipeline.decodes and pipeline.config.is_split:
            self.events.at(self.now, self._look)

    def _copy_s(self, pipeline: Pipeline, jobs: list[Job]) -> float:
        """Return the seconds until KV from pipelines for prompts is there; their instances send side by side."""
        if not (pipeline.decodes and pipeline.config.is_split):
            return 0.0
        run = self.run_
        instances = -(-pipeline.config.pipeline_devices // run.model.devices)
        kv_bytes = sum(job.kv_tokens for job in jobs) * run.model.shape.kv_token_bytes
        return kv_bytes / (instances * run.surroundings.network_bytes_per_s)

    def _begin(self, pipeline: Pipeline, jobs: list[Job], copy_s: float = 0.0, width: int | None = None) -> None:
        pipeline.begin(jobs, self.now, copy_s, width)
        self.events.at(max(self.now, pipeline.ends_s), self._ended, (pipeline, pipeline.epoch))

    def _join(self, expected: tuple[Pipeline, int]) -> None:
        """Let requests join a batch between two iterations."""
        pipeline, epoch = expected
        if pipeline.epoch != epoch:
            return
        pipeline.joins_at = None
        jobs = (
            self._next_jobs(pipeline, pipeline.config.max_batch - len(pipeline.jobs)) if self._sources(pipeline) else []
        )
        if jobs and self.system.accepts(pipeline, jobs):
            pipeline.settle(self.now)
            rest = self._answer(pipeline)
            self._take(pipeline, jobs)
            self._begin(pipeline, rest + jobs, self._copy_s(pipeline, jobs))
            self._look_again(pipeline)

    def _ended(self, expected: tuple[Pipeline, int]) -> None:
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
        self._look()

    def _answer(self, pipeline: Pipeline) -> list[Job]:
        """Take those away that have their last token; return the others."""
        jobs = pipeline.take_all()
        for job in jobs:
            if job.decoded >= self.pace.output_tokens:
                job.finished_s, job.kv_tokens = self.now, 0
                self._unanswered -= 1
        return [job for job in jobs if job.finished_s is None]


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def _system(world: SpotWorld) -> ServingSystem:
    reaction = world.run_.system.reaction
    if reaction is Reaction.MIGRATE:
        return Migrating(world)
    return Restarting(world) if reaction is Reaction.RESTART else Rerouting(world)
