"""Runs jobs on one engine under one scheduler; the same case gives the same figures in every process. JCT is E2E, per token
over the output tokens (FastServe, section 6.1, and its artifact), of all jobs and of the middle ones: a steady state, if
there is one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.messages.members import Pool
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.run_summary import is_steady
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.simulator.world.settings import SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World
from spotwise.studies.fastserve.engines import (
    ENGINES,
    USUAL_QUEUES,
    GpuEngine,
    Queues,
    Scheduler,
    interruptions,
    worker_policy,
)
from spotwise.studies.fastserve.job_sizes import AzureSizes, JobSizes, gamma_arrivals

PERCENTS = (50, 95, 99)
#: Shares of the arrivals between which a steady state is measured.
STEADY_FROM, STEADY_TO = 0.2, 0.8


@dataclass(frozen=True, slots=True)
class JobCase:
    """Everything that a run depends on.

    Attributes:
        engine: name of one of `ENGINES`.
        rate: jobs a second.
        jobs: number of arrivals.
        cv: coefficient of variation of the gaps between them.
        batch, kv_tokens, host_bytes_per_s: as in `GpuEngine`; `None` for the engine's own.
    """

    engine: str
    scheduler: Scheduler
    sizes: JobSizes
    rate: float
    jobs: int
    cv: float = 1.0
    seed: int = 0
    queues: Queues = USUAL_QUEUES
    batch: int | None = None
    kv_tokens: int | None = None
    host_bytes_per_s: float | None = None

    @property
    def built_engine(self) -> GpuEngine:
        """The engine with this case's changes."""
        engine = ENGINES[self.engine]
        return replace(
            engine,
            batch=self.batch or engine.batch,
            kv_tokens=self.kv_tokens or engine.kv_tokens,
            host_bytes_per_s=self.host_bytes_per_s or engine.host_bytes_per_s,
        )

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads."""
        return (self.sizes.path,) if isinstance(self.sizes, AzureSizes) else ()


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Figures of a run.

    Attributes:
        jct_s, jct_per_token_s: figures (`mean`, `p50`, `p95`, `p99`) of all jobs.
        steady_jct_s, steady_jct_per_token_s: figures of the jobs in the middle.
        live_at_last_arrival: unfinished jobs at the last arrival; under a steady load, some batches.
        utilisation: share of the time in which the engine, or each of its stages, computed, 0 to 1.
        peak_kv_tokens: most tokens with blocks, device and host.
        swapped_bytes: out and in together.
        preemptions: jobs that were recomputed.
        wall_s: real seconds; the only figure that varies between runs of a case.
    """

    case: JobCase
    completed: int
    jct_s: Mapping[str, float]
    jct_per_token_s: Mapping[str, float]
    steady_jct_s: Mapping[str, float]
    steady_jct_per_token_s: Mapping[str, float]
    ended_s: float
    live_at_last_arrival: int
    utilisation: float
    peak_kv_tokens: int
    swapped_bytes: int
    preemptions: int
    wall_s: float = field(compare=False)

    @property
    def is_steady(self) -> bool:
        """Whether it reached a steady state."""
        return is_steady(self.jct_s.get("mean"), self.case.jobs / self.case.rate)


def simulate_jobs(case: JobCase) -> JobSummary:
    """Run a case to the end of its last job; raises TraceError if a trace cannot be read, ValueError if a job does not fit."""
    engine = case.built_engine
    arrivals = list(gamma_arrivals(case.sizes, case.rate, case.cv, case.jobs, case.seed))
    figures = _Figures(arrivals)
    settings = WorldSettings(
        engine.model,
        worker_policy(engine, case.scheduler, case.queues),
        max_new_tokens=max(arrival.output_tokens for arrival in arrivals),
        memory_share=1.0,
        control_latency_s=0.0,
        heartbeat_s=10.0,
        tick_s=10.0,
        through_scheduler=False,
        interrupted=interruptions(engine, case.scheduler, case.queues),
    )
    began_s = time.perf_counter()
    world = World([SimulatedMachine(engine.machine, Pool.MIXED)], settings, figures)
    result = world.run(arrivals)
    (machine,) = result.machines
    return JobSummary(
        case,
        result.completed,
        _figures_of(figures.jct),
        _figures_of(figures.jct_per_token),
        _figures_of(figures.steady_jct),
        _figures_of(figures.steady_jct_per_token),
        result.ended_s,
        figures.live_at_last_arrival,
        min(1.0, figures.busy_s / result.ended_s),
        machine.peak_kv_tokens,
        machine.swapped_out_bytes + machine.swapped_in_bytes,
        machine.preemptions,
        time.perf_counter() - began_s,
    )


class _Figures:
    def __init__(self, arrivals: list[Arrival]) -> None:
        self.jct, self.jct_per_token = Percentiles(), Percentiles()
        self.steady_jct, self.steady_jct_per_token = Percentiles(), Percentiles()
        self.live_at_last_arrival = 0
        self.busy_s = 0.0
        last = len(arrivals) - 1
        self._from_s, self._to_s = (arrivals[round(share * last)].at_s for share in (STEADY_FROM, STEADY_TO))
        self._last_s = arrivals[-1].at_s

    def request_completed(self, request: CompletedRequest) -> None:
        self.live_at_last_arrival += request.finished_s > self._last_s
        per_token_s = request.e2e_s / request.arrival.output_tokens
        self.jct.add(request.e2e_s)
        self.jct_per_token.add(per_token_s)
        if self._from_s <= request.arrival.at_s <= self._to_s:
            self.steady_jct.add(request.e2e_s)
            self.steady_jct_per_token.add(per_token_s)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        raise ValueError(f"a job of {arrival.prompt_tokens} and {arrival.output_tokens} tokens was refused: {reason}")

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        self.busy_s += seconds

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        pass


def _figures_of(values: Percentiles) -> dict[str, float]:
    figures = {"mean": values.mean} | {f"p{percent}": values.at(percent) for percent in PERCENTS}
    return {name: seconds for name, seconds in figures.items() if seconds is not None}
