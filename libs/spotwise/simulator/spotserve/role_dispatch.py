"""Pipelines with batches made by the mesh's roles, each a machine of a `World` while it is up; its KV fits B requests. With
disaggregated phases its pool is prompt or token, and KV is handed off as in the mesh. The prefill yields the first token, so
a request alone takes one step less than the artifact's l_exe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import BatchShape, IterationCost
from spotwise.core.messages.members import Pool
from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.core.parallel.scaled_cost import GroupCost, ScaledCost
from spotwise.core.values import value
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.sequences.sequence import Sequence as HeldSequence
from spotwise.simulator.costs.hardware import LanguageModel, MachineType
from spotwise.simulator.spotserve.pipelines import BatchTimes, Dispatcher, Job
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.machine import Machine
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World

#: Seconds between heartbeats of a machine whose load changed; endings and computed prompts are reported besides.
_HEARTBEAT_S = 2.0
#: Scheduler tick in seconds, besides the pass after each message.
_TICK_S = 1.0
#: Tokens of a KV block: one, so that the KV capacity equals the configuration's B requests.
_BLOCK_TOKENS = 1


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """Seconds of iterations on one pipeline; `times` are of whole batches."""

    times: BatchTimes
    config: ParallelConfig

    def iteration_s(self, shape: BatchShape) -> float:
        """Return the seconds of one iteration: its prompts, of about equal length, and a decode step."""
        seconds = 0.0
        if shape.prompt_tokens:
            prompts = max(1, round(shape.prompt_tokens / self.times.input_tokens))
            tokens = -(-shape.prompt_tokens // prompts)
            # A batch may be padded: in the artifact's tables one prompt takes longer than four (1.6 s, 1.0 s).
            widths = range(prompts, max(prompts, self.config.max_batch) + 1)
            seconds += min(self.times.prompt_s(self.config, width, tokens) for width in widths)
        if shape.decodes:
            seconds += self.times.step_s(self.config, shape.decodes)
        return seconds


@value
class _JobArrival(Arrival):
    job: Job = field(kw_only=True)


@dataclass(slots=True, eq=False)
class RolePipeline:
    """One pipeline of a configuration.

    Attributes:
        serves_from_s: when its weights and KV have arrived.
        id, home_pool: id and home pool of its machine.
        moved: requests whose KV is in transfer to it, until it serves.
        machine: `None` until it serves.
    """

    number: int
    config: ParallelConfig
    serves_from_s: float
    id: str
    home_pool: Pool
    dispatcher: RoleDispatcher
    moved: list[Job]
    machine: Machine | None = None

    @property
    def batch(self) -> list[Job]:
        """The requests whose KV it has."""
        return [job for job, _ in self._held()] + self.moved

    def _held(self) -> list[tuple[Job, HeldSequence]]:
        if self.machine is None:
            return []
        return [
            (self.dispatcher.job(sequence), sequence)
            for sequence in self.machine.sequences()
            if sequence.computed_tokens and sequence.output_tokens and sequence.decodes_here
            if self.dispatcher.is_current(sequence)
        ]

    def boundary_s(self, now: float) -> float:
        """Return the end of the iteration that runs now."""
        return self.serves_from_s if self.machine is None else self.machine.boundary_s

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return the requests whose KV it has, in their current state, without a change."""
        held = [(job, s.computed_tokens, s.output_tokens) for job, s in self._held()]
        held += [(job, job.kv_tokens, job.decoded) for job in self.moved]
        return tuple(
            RunningRequest(str(job.number), kv_tokens, decoded, job.output_tokens - decoded)
            for job, kv_tokens, decoded in held
            if decoded < job.output_tokens
        )


class RoleDispatcher(Dispatcher[RolePipeline]):
    """Pipelines as machines of a world, and the world's observer."""

    def __init__(self, run: SpotRun, events: EventQueue) -> None:
        super().__init__(run, events)
        self._run = run
        self._model = _language_model(run.model.shape)
        settings = WorldSettings(
            self._model,
            WorkerPolicy(prefix_caching=False, watermark=0.0, limits=BatchLimits(max_num_seqs=_widest(run))),
            knows_output=True,
            memory_share=1.0,
            kv_block_size=_BLOCK_TOKENS,
            heartbeat_s=_HEARTBEAT_S,
            tick_s=_TICK_S,
            beats_after_endings=True,
            elastic=True,
        )
        self._world = World((), settings, self, events)
        self._jobs: dict[int, Job] = {}  # unanswered, by the number of the request in the world
        self._numbers: dict[Job, int] = {}
        self._started = 0

    def is_current(self, sequence: HeldSequence) -> bool:
        """Return whether a sequence is its request's last attempt with tokens remaining."""
        return self._world.is_current(sequence)

    def job(self, sequence: HeldSequence) -> Job:
        """Return the request of a sequence."""
        return self._jobs[int(sequence.choice_id)]

    def arrive(self, job: Job) -> None:
        """Submit a request."""
        arrival = _JobArrival(self._events.now, job.input_tokens, job.output_tokens, job=job)
        number = self._world.submit(arrival)
        self._jobs[number], self._numbers[job] = job, number

    def start(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> None:
        """Start a pipeline with the requests whose KV moves to it."""
        home_pool = Pool.MIXED if not config.is_split else Pool.PROMPT if number < config.prompt_data else Pool.TOKEN
        machine_id = f"pipeline-{self._started:06}"
        self._started += 1
        pipeline = RolePipeline(number, config, serves_from_s, machine_id, home_pool, self, jobs)
        self._pipelines[number] = pipeline
        self._events.at(max(self._events.now, serves_from_s), self._join, pipeline)

    def stop(self, number: int) -> list[Job]:
        """Stop a pipeline; return the requests whose KV it has."""
        pipeline = self._pipelines.pop(number)
        jobs, pipeline.moved = pipeline.moved, []
        if pipeline.machine is not None:
            for sequence in self._world.leave(pipeline.id):
                job = self.job(sequence)
                job.decoded, job.kv_tokens = sequence.output_tokens, sequence.computed_tokens
                self._world.take_off(self._numbers[job], job.decoded)
                jobs.append(job)
        for job in jobs:
            job.interruptions += 1
        return jobs

    def hand_over(self, job: Job, number: int, at_s: float) -> None:
        """Let a request that was stopped go on in a pipeline that serves, once its KV is there."""
        pipeline = self._pipelines[number]
        pipeline.moved.append(job)
        self._events.at(at_s, self._handed_over, (pipeline, job))

    def _handed_over(self, arrival: tuple[RolePipeline, Job]) -> None:
        pipeline, job = arrival
        if job in pipeline.moved:  # otherwise the pipeline was stopped meanwhile
            pipeline.moved.remove(job)
            self._world.go_on(self._numbers[job], pipeline.id)

    def recompute(self, jobs: list[Job], *, keep_answer: bool) -> None:
        """Submit requests again whose KV is lost."""
        for job in jobs:
            job.lose_kv(keep_answer=keep_answer)
            self._world.submit_again(self._numbers[job], job.decoded)

    def request_completed(self, request: CompletedRequest) -> None:
        """Record an answered request."""
        assert isinstance(request.arrival, _JobArrival)
        job = request.arrival.job
        job.finished_s, job.kv_tokens = request.finished_s, 0
        del self._jobs[self._numbers.pop(job)]
        self.unanswered -= 1

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """Raise: no request may fail permanently."""
        raise ValueError(f"a request failed in the simulated mesh: {reason}")

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """Ignore iterations: only whole requests are measured."""

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        """Ignore inter-token gaps."""

    def _join(self, pipeline: RolePipeline) -> None:
        if self._pipelines.get(pipeline.number) is not pipeline:
            return  # stopped before it served
        moved, pipeline.moved = pipeline.moved, []
        numbers = [self._numbers[job] for job in moved]
        pipeline.machine = self._world.join(pipeline.id, self._machine(pipeline), numbers)

    def _machine(self, pipeline: RolePipeline) -> SimulatedMachine:
        run, times, config = self._run, self.times, pipeline.config
        kv_tokens = config.max_batch * run.arrivals.largest_tokens
        instances = -(-config.pipeline_devices // run.model.devices)
        kind = MachineType(
            "pipeline",
            _iteration_cost(run, times, replace(config, data=1, prompt_data=0)),
            kv_tokens * self._model.kv_token_bytes,
            instances * run.surroundings.network_bytes_per_s,
        )
        return SimulatedMachine(kind, pipeline.home_pool)


def _iteration_cost(run: SpotRun, times: BatchTimes, config: ParallelConfig) -> IterationCost:
    """Return what iterations of a pipeline cost: as a worker's scaled to its shape, or where only whole batches are known, as
    their parts.
    """
    if isinstance(run.model.cost, ScaledCost):
        return GroupCost(run.model.cost, config, 1 / run.surroundings.slowdown)
    return PipelineCost(times, config)


def _widest(run: SpotRun) -> int:
    """Return B, the most requests of a pipeline; with requests of one size, its KV bounds them as well."""
    return run.model.max_batch if run.system.shape is None else run.system.shape.max_batch


def _language_model(shape: ModelShape) -> LanguageModel:
    """Return the model for links and KV blocks; without weights, which the configuration has checked."""
    values = shape.kv_token_bytes // (2 * shape.layers * shape.value_bytes)
    return LanguageModel(
        shape.name, 0, shape.layers, heads=1, kv_heads=1, head_size=values, value_bytes=shape.value_bytes
    )
