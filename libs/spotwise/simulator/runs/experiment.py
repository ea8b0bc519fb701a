"""Runs one case and summarizes it, both small enough to send between processes; a case gives the same summary in every process,
except for real time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotwise.core.batching import BatchLimits
from spotwise.core.cluster.policy import DecodeQueue, PoolPolicy
from spotwise.core.cost_model import IterationCost
from spotwise.core.cost_profile import CostProfile
from spotwise.core.measured_range import Extrapolation
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.costs.hardware import GIB, LANGUAGE_MODELS, LanguageModel
from spotwise.simulator.costs.machine_costs import (
    A100,
    DecodeModel,
    built_in_costs,
    costs_from,
    published_built_in_costs,
    published_costs_from,
)
from spotwise.simulator.costs.published_costs import PublishedIterationCost
from spotwise.simulator.runs.designs import DESIGNS, Design, Split
from spotwise.simulator.runs.lost_objectives import LostObjectives, ObjectivesLostError
from spotwise.simulator.runs.metrics import METRICS, PoolFigures, RunMetrics, Verdict, time_shares
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.recorded import recorded_design, recorded_settings
from spotwise.simulator.runs.request_rows import MetricsAndRows, RequestRows
from spotwise.simulator.runs.slo import PERCENTS, AloneOn, PublishedAlone, Uncontended
from spotwise.simulator.runs.steady_state import is_steady
from spotwise.simulator.runs.workload import ClusterWorkload
from spotwise.simulator.world.results import WorldResult
from spotwise.simulator.world.settings import Overlap, WorldSettings
from spotwise.simulator.world.world import World, machine_ids

#: Allocations between garbage collections; Python's default of 700 takes a tenth of a run.
_COLLECT_AFTER = 100_000
#: Bytes of a gibibyte of weights in the published simulator, which takes it for a gigabyte.
_PUBLISHED_WEIGHT_GIB = 1_000_000_000
#: Sequences of an iteration in the published simulator at most; beside prompts that fill it decodes pause.
_PUBLISHED_LIMITS = BatchLimits(max_num_seqs=512, decodes_pause=True)
#: Rate of every transfer in the published simulator, on any machine; it has no overlapped transfer.
_PUBLISHED_LINK_BYTES_PER_S = 200 * GIB


@dataclass(frozen=True, slots=True)
class LeavingMachines:
    """So many machines, the last of the cluster, get notice at `at_s` and are gone `notice_s` later."""

    machines: int
    at_s: float
    notice_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a run depends on.

    Attributes:
        design: name of one of `DESIGNS`, or `RECORDED`.
        rate: requests a second; `None` for a trace's own.
        seconds: of arrivals; `None` to the end of a trace.
        model: name of one of `LANGUAGE_MODELS`.
        decode_model: how iterations are timed. All but the honest one also take the published settings where they exist: known
            output lengths, all memory in use, no message latency.
        profile: of the machines; `None` for the built-in costs.
        chunk_tokens: token budget of an iteration (chunked prefill); `None` runs prompts whole.
        recorded: profile of all machines, instead of `design`, `model`, `decode_model` and `profile`.
        price_per_hour: of a recorded machine, US dollars.
        verdict_only: end the run at the first broken SLO. Only the verdict of its summary is valid then; requests unanswered by
            that time count as failed.
        leaving: machines that leave in the course of the run.
        prefix_caching: workers reuse equal beginnings of prompts, where the workload knows them; not in the published settings.
    """

    design: str
    split: Split
    workload: ClusterWorkload
    rate: float | None
    seconds: float | None
    seed: int = 0
    model: str = "bloom-176b"
    decode_model: DecodeModel = DecodeModel.HONEST
    profile: Path | None = None
    chunk_tokens: int | None = None
    recorded: CostProfile | None = None
    price_per_hour: float = 0.0
    verdict_only: bool = False
    leaving: LeavingMachines | None = None
    prefix_caching: bool = True

    @property
    def caches_prefixes(self) -> bool:
        """Whether its workers have prefix caches; raises TraceError if its trace cannot be read."""
        is_live = self.recorded is not None or self.decode_model is DecodeModel.HONEST
        return self.prefix_caching and is_live and self.workload.knows_contents

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads."""
        return self.workload.path, self.profile

    @property
    def label(self) -> str:
        """The design and its machines, like `Splitwise-HA (25, 26)`."""
        machines = f"{self.split.prompt}, {self.split.token}" if self.split.token else f"{self.split.prompt}"
        chunks = "" if self.chunk_tokens is None else f", chunks of {self.chunk_tokens}"
        return f"{self.design} ({machines}{chunks})"


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """Figures of one pool's machines.

    Attributes:
        utilisation: share of the run's time in iterations, 0 to 1.
        mean_decodes: decoding sequences of an iteration, mean over iterations.
        tokens, time_shares: the share of the busy time spent in iterations of at most so many tokens.
    """

    machines: int
    utilisation: float
    iterations: int
    mean_decodes: float
    tokens: tuple[int, ...]
    time_shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Figures of a run.

    Attributes:
        ended_s: simulated end of the last request.
        requests_per_s: steady state, between a quarter and three quarters of all answers.
        output_tokens_per_s: at that rate.
        latencies_s: by metric (`ttft`, `tbt`, `e2e`, `itl`) and figure (`mean`, `p50`, `p90`, `p99`), as far as measured.
        price_per_hour: of all machines, US dollars.
        power: of all machines, in units of a DGX-A100's.
        handoffs, handoff_bytes: KV transfers between machines.
        preemptions: sequences that lost their blocks.
        wall_s: real seconds; the only figure that varies between runs of a case.
        moved, recomputed: requests of machines that left, with their KV and computed again.
        beyond_profile: the part of the time that a recorded profile did not measure; `None` where that is not known.
        cached_share: of the completed requests' prompt tokens, those found in prefix caches; `None` without these.
    """

    case: Case
    completed: int
    failed: int
    first_failure: str | None
    ended_s: float
    requests_per_s: float
    output_tokens_per_s: float
    latencies_s: Mapping[str, Mapping[str, float]]
    verdict: Verdict
    pools: Mapping[str, PoolSummary]
    price_per_hour: float
    power: float
    handoffs: int
    handoff_bytes: float
    preemptions: int
    wall_s: float = field(compare=False)
    moved: int = 0
    recomputed: int = 0
    cached_share: float | None = None
    beyond_profile: Extrapolation | None = None

    @property
    def is_steady(self) -> bool:
        """Whether it reached a steady state; of a run to its end."""
        return is_steady(self.latencies_s.get("e2e", {}).get("mean"), self.case.seconds or self.ended_s)

    @property
    def dollars_per_1000_requests(self) -> float | None:
        """US dollars per thousand answers at this load; `None` without answers."""
        return 1000 * self.price_per_hour / 3600 / self.requests_per_s if self.requests_per_s else None


@dataclass(frozen=True, slots=True)
class _Setup:
    design: Design
    costs: Mapping[str, IterationCost]
    reference: Uncontended
    settings: WorldSettings


def simulate(case: Case, rows: RequestRows | None = None) -> RunSummary:
    """Run a case until its last request ends.

    Args:
        rows: takes every request as it ends.

    Raises:
        ProfileError, TraceError: a file is wrong.
        ValueError: the model does not fit a machine, or the split not the design; or all machines leave.
    """
    limits = BatchLimits(max_num_batched_tokens=case.chunk_tokens)
    policy = WorkerPolicy(prefix_caching=case.caches_prefixes, limits=limits)
    setup = _paper_setup(case, policy) if case.recorded is None else _recorded_setup(case.recorded, case, policy)
    cluster = setup.design.cluster(case.split, setup.costs)
    home_pools = dict(zip(machine_ids(len(cluster)), (machine.home_pool.value for machine in cluster), strict=True))
    requests = sum(1 for _ in case.workload.arrivals(case.rate, case.seconds, case.seed)) if case.verdict_only else 0
    measured = None if case.recorded is None else case.recorded.measured
    metrics = RunMetrics(setup.reference, home_pools, LostObjectives(requests) if case.verdict_only else None, measured)
    settings = replace(setup.settings, elastic=case.leaving is not None, reports_machines=rows is not None)
    if case.caches_prefixes:
        settings = replace(settings, pools=PoolPolicy())
    world = World(cluster, settings, metrics if rows is None else MetricsAndRows(metrics, rows))
    if case.leaving is not None:
        _give_notice(world, list(home_pools), case.leaving)
    began_s = time.perf_counter()
    with _collecting_rarely():
        try:
            result = world.run(case.workload.arrivals(case.rate, case.seconds, case.seed))
        except ObjectivesLostError:
            metrics.failed = requests - metrics.finishes.count
            result = replace(world.result(), failed=metrics.failed)
    return _summary(case, setup.design, metrics, result, home_pools, time.perf_counter() - began_s)


def _give_notice(world: World, machines: list[str], leaving: LeavingMachines) -> None:
    if leaving.machines >= len(machines):
        raise ValueError(f"{leaving.machines} machines leave of {len(machines)}; at least one must stay")
    for machine_id in machines[-leaving.machines :]:
        world.notice_at(leaving.at_s, machine_id, leaving.notice_s)


def _recorded_setup(profile: CostProfile, case: Case, policy: WorkerPolicy) -> _Setup:
    """Slowdowns are against one idle recorded machine."""
    return _Setup(
        recorded_design(profile, case.split, case.price_per_hour),
        {profile.name: profile.iteration},
        AloneOn(profile.iteration),
        recorded_settings(profile, policy),
    )


def _paper_setup(case: Case, policy: WorkerPolicy) -> _Setup:
    """A decode model that changes one thing of the published one keeps the published reference of slowdowns."""
    design, model, decode_model = DESIGNS[case.design], LANGUAGE_MODELS[case.model], case.decode_model
    if decode_model is DecodeModel.HONEST:
        costs = built_in_costs(model) if case.profile is None else costs_from(case.profile, model)
        return _Setup(design, costs, AloneOn(costs[A100]), WorldSettings(model, policy))
    reference = PublishedAlone(_published_costs(case, DecodeModel.PUBLISHED)[A100])
    if case.chunk_tokens is None:
        policy = replace(policy, limits=_PUBLISHED_LIMITS)
    return _Setup(design, _published_costs(case, decode_model), reference, _published_settings(model, policy))


def _published_costs(case: Case, decode_model: DecodeModel) -> dict[str, PublishedIterationCost]:
    model = LANGUAGE_MODELS[case.model]
    if case.profile is None:
        return published_built_in_costs(model, decode_model)
    return published_costs_from(case.profile, model, decode_model)


def _published_settings(model: LanguageModel, policy: WorkerPolicy) -> WorldSettings:
    # Its KV has all heads of the queries, also where they are grouped.
    weight_bytes = model.weight_bytes // GIB * _PUBLISHED_WEIGHT_GIB
    model = replace(model, weight_bytes=weight_bytes, kv_heads=model.heads)
    # Its scheduler sees computed prompts at once, never re-purposes a machine, and never serves in place what it can split.
    return WorldSettings(
        model,
        policy,
        pools=PoolPolicy(decode_queue=DecodeQueue.SEQUENCES, break_even=False, repurpose_window_s=None, prefix_spans=0),
        knows_output=True,
        memory_share=1.0,
        control_latency_s=0.0,
        overlap=Overlap(crossover_tokens=None),
        link_latency_s=0.0,
        private_link_bytes_per_s=_PUBLISHED_LINK_BYTES_PER_S,
        news_interval_s=0.0,
        beats_after_endings=True,
    )


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Collect garbage rarely: a run makes hardly any cycles."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _summary(
    case: Case, design: Design, metrics: RunMetrics, result: WorldResult, home_pools: Mapping[str, str], wall_s: float
) -> RunSummary:
    machines = list(home_pools.values())
    ended_s = result.ended_s
    requests_per_s = metrics.steady_requests_per_s or (result.completed / ended_s if ended_s else 0.0)
    return RunSummary(
        case,
        result.completed,
        result.failed,
        metrics.first_failure,
        ended_s,
        requests_per_s,
        requests_per_s * metrics.output_tokens / result.completed if result.completed else 0.0,
        {metric: _latency_figures(metrics.latencies[metric]) for metric in (*METRICS, "itl")},
        metrics.verdict(),
        {name: _pool_summary(pool, machines.count(name), ended_s) for name, pool in sorted(metrics.pools.items())},
        design.price_per_hour(case.split),
        design.power(case.split),
        sum(machine.sent for machine in result.machines),
        sum(machine.sent_bytes for machine in result.machines),
        sum(machine.preemptions for machine in result.machines),
        wall_s,
        result.moved,
        result.recomputed,
        metrics.cached_share if case.caches_prefixes else None,
        None if metrics.beyond is None else metrics.beyond.extrapolation(),
    )


def _latency_figures(values: Percentiles) -> dict[str, float]:
    """Return mean and percentiles of latencies, seconds, as far as measured."""
    figures = {"mean": values.mean} | {f"p{percent}": values.at(percent) for percent in PERCENTS}
    return {name: seconds for name, seconds in figures.items() if seconds is not None}


def _pool_summary(pool: PoolFigures, machines: int, ended_s: float) -> PoolSummary:
    tokens, shares = time_shares(pool)
    return PoolSummary(
        machines,
        pool.busy_s / (machines * ended_s) if ended_s else 0.0,
        pool.iterations,
        pool.decode_tokens / pool.iterations,
        tuple(tokens),
        tuple(shares),
    )
