"""What systems see of the pipelines that serve, whether batches are the artifact's or the mesh's roles make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.execution import ExecutionCost


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way.

    Attributes:
        number: in the order of arrival.
        arrived_s: when it arrived.
        decoded: tokens of its answer that are made and kept.
        kv_tokens: tokens whose KV is on a pipeline; 0 where there is none.
        finished_s: when its last token was made.
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
        """Forget the KV; and the tokens, where progress is not committed."""
        self.recomputed_tokens += self.kv_tokens
        self.kv_tokens = 0
        if not keep_answer:
            self.decoded = 0


class BatchTimes:
    """Seconds of batches of requests of one size."""

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


class ServingPipeline(Protocol):
    """One pipeline of a configuration.

    Attributes:
        number: as positions count.
        config: of which it is a part.
        serves_from_s: when its weights and the KV that moves to it are there.
    """

    number: int
    config: ParallelConfig
    serves_from_s: float

    @property
    def batch(self) -> Sequence[Job]:
        """The requests that it computes."""

    def boundary_s(self, now: float) -> float:
        """Return the end of the iteration that runs now."""

    def snapshot(self, now: float) -> tuple[RunningRequest, ...]:
        """Return the requests whose KV it has, as they are now, without a change."""

    def planned(self, jobs: list[Job], width: int) -> tuple[float, float, int]:
        """Return what a batch would take: seconds before the first step, of a step, and steps until a request ends."""


class Dispatcher(Protocol):
    """The pipelines and the requests that wait for them.

    Attributes:
        times: of batches.
        pipelines: by number.
        unanswered: requests without their last token, those included that have not arrived.
    """

    times: BatchTimes
    unanswered: int

    @property
    def pipelines(self) -> Sequence[ServingPipeline]:
        """The pipelines in order of their numbers."""

    def pipeline(self, number: int) -> ServingPipeline | None:
        """Return a pipeline by number."""

    def arrive(self, job: Job) -> None:
        """Take in a request."""

    def start(self, number: int, config: ParallelConfig, serves_from_s: float, jobs: list[Job]) -> None:
        """Start a pipeline with the requests whose KV moves to it."""

    def stop(self, number: int) -> list[Job]:
        """Stop a pipeline; return the requests whose KV it has. Its other requests wait again."""

    def renumber(self, numbers: dict[int, int], config: ParallelConfig) -> None:
        """Give the pipelines that run on, which are all, the numbers that they have in another configuration."""

    def recompute(self, jobs: list[Job], *, keep_answer: bool) -> None:
        """Let requests wait whose KV is lost."""

    def look(self) -> None:
        """Give pipelines the requests that they can take."""
