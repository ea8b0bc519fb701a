"""The interface of pipelines and dispatchers, for the artifact's static batches as for those of the mesh's roles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.instances import ExecutionCost
from spotwise.simulator.spotserve.run import SpotRun
from spotwise.simulator.world.events import EventQueue


@dataclass(slots=True, eq=False)
class Job:
    """A request in progress.

    Attributes:
        number: its index in arrival order.
        input_tokens, output_tokens: tokens of its prompt, and tokens to generate.
        decoded: output tokens made and kept.
        kv_tokens: tokens with KV on a pipeline; 0 without any.
        interruptions: times that its batch was stopped, or migrated with a pause.
        recomputed_tokens: prompt and output tokens that were computed and lost.
    """

    number: int
    arrived_s: float
    input_tokens: int
    output_tokens: int
    decoded: int = 0
    kv_tokens: int = 0
    finished_s: float | None = None
    interruptions: int = 0
    recomputed_tokens: int = 0

    def lose_kv(self, *, keep_answer: bool) -> None:
        """Drop the KV, and the tokens where progress is not committed."""
        self.recomputed_tokens += self.kv_tokens
        self.kv_tokens = 0
        if not keep_answer:
            self.decoded = 0


class BatchTimes:
    """Seconds of batches; `input_tokens` and `output_tokens` are those of a usual request."""

    def __init__(self, cost: ExecutionCost, input_tokens: int, output_tokens: int, slowdown: float) -> None:
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self._cost, self._slowdown = cost, slowdown
        self._steps: dict[tuple[ParallelConfig, int], float] = {}
        self._prompts: dict[tuple[ParallelConfig, int, int], float] = {}

    def step_s(self, config: ParallelConfig, width: int) -> float:
        """Return the seconds of a decode step of `width` sequences."""
        key = (config, width)
        if key not in self._steps:
            self._steps[key] = self._cost.step_s(replace(config, max_batch=width)) * self._slowdown
        return self._steps[key]

    def prompt_s(self, config: ParallelConfig, width: int, tokens: int) -> float:
        """Return the seconds of a prefill of `width` sequences with so many prompt tokens each."""
        key = (config, width, tokens)
        if key not in self._prompts:
            self._prompts[key] = self._cost.prompt_s(replace(config, max_batch=width), tokens) * self._slowdown
        return self._prompts[key]


class ServingPipeline(Protocol):
    """One pipeline of a configuration; `serves_from_s` is when its weights and migrated KV have arrived."""

    number: int
    config: ParallelConfig
    serves_from_s: float

    @property
    def batch(self) -> Sequence[Job]:
        """The requests in computation."""

    def boundary_s(self, now: float) -> float:
        """Return the end of the iteration that runs now."""

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return the requests whose KV it has, in their current state, without a change."""


P = TypeVar("P", bound=ServingPipeline)


class Dispatcher(ABC, Generic[P]):
    """The pipelines and their queue; `unanswered` counts requests without a last token, future arrivals included."""

    def __init__(self, run: SpotRun, events: EventQueue) -> None:
        arrivals = run.arrivals
        self.times = BatchTimes(
            run.model.cost, arrivals.input_tokens, arrivals.output_tokens, run.surroundings.slowdown
        )
        self.unanswered = len(arrivals)
        self._events = events
        self._pipelines: dict[int, P] = {}

    @property
    def pipelines(self) -> list[P]:
        """The pipelines in order of their numbers."""
        return [self._pipelines[number] for number in sorted(self._pipelines)]

    def pipeline(self, number: int) -> P | None:
        """Return a pipeline by number."""
        return self._pipelines.get(number)

    def running(self) -> set[Job]:
        """Return the requests in computation."""
        return {job for pipeline in self._pipelines.values() for job in pipeline.batch}

    def renumber(self, numbers: dict[int, int], config: ParallelConfig) -> None:
        """Renumber the pipelines, all of which continue in another configuration."""
        pipelines, self._pipelines = self.pipelines, {}
        for pipeline in pipelines:
            pipeline.number, pipeline.config = numbers[pipeline.number], config
            self._pipelines[pipeline.number] = pipeline

    @abstractmethod
    def arrive(self, job: Job) -> None:
        """Enqueue a request."""

    @abstractmethod
    def start(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> None:
        """Start a pipeline with the requests whose KV moves to it."""

    @abstractmethod
    def stop(self, number: int) -> list[Job]:
        """Stop a pipeline; return the requests whose KV it has, and enqueue its others again."""

    @abstractmethod
    def recompute(self, jobs: list[Job], *, keep_answer: bool) -> None:
        """Enqueue requests whose KV is lost."""

    def look(self) -> None:
        """Dispatch waiting requests; a no-op where requests are placed on arrival."""
