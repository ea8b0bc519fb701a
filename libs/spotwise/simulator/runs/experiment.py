"""Runs one case and summarizes it, both small enough to send between processes; a case gives the same summary in every process,
except for real time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spotwise.simulator.costs.machine_costs import DecodeModel
from spotwise.simulator.runs.clusters import Cluster, Split
from spotwise.simulator.runs.lost_objectives import LostObjectives, ObjectivesLostError
from spotwise.simulator.runs.machine_changes import MachineChange, MachineLife, lives_of
from spotwise.simulator.runs.metrics import PoolFigures, RunMetrics, Verdict, time_shares
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.serving_policy import USUAL_POLICY, ServingPolicy
from spotwise.simulator.runs.setups import ClusterSetup, own_setup, paper_setup, world_of
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_SLOS, AloneOn, Objectives
from spotwise.simulator.runs.workload import ClusterWorkload
from spotwise.simulator.world.results import WorldResult

#: Allocations between garbage collections; Python's default of 700 takes a tenth of a run.
_COLLECT_AFTER = 100_000


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a run depends on.

    Attributes:
        rate: requests a second; `None` for a trace's own.
        seconds: of arrivals; `None` to the end of a trace.
        model: name of one of `LANGUAGE_MODELS`; this and the next two are of the paper's machines only.
        decode_model: how iterations are timed. All but the honest one also take the published settings where they exist: known
            output lengths, all memory in use, no message latency.
        profile: of the machines; `None` for the built-in costs.
        verdict_only: end the run at the first broken SLO. Only the verdict of its summary is valid then; requests unanswered by
            that time count as failed.
        changes: machines that come and go in the course of the run.
    """

    cluster: Cluster
    workload: ClusterWorkload
    rate: float | None
    seconds: float | None
    seed: int = 0
    model: str = "bloom-176b"
    decode_model: DecodeModel = DecodeModel.HONEST
    profile: Path | None = None
    policy: ServingPolicy = USUAL_POLICY
    objectives: Objectives = SPLITWISE_SLOS
    verdict_only: bool = False
    changes: tuple[MachineChange, ...] = ()

    @property
    def files(self) -> tuple[Path | None, ...]:
        """Files that the run reads."""
        return self.workload.path, self.profile

    @property
    def split(self) -> Split:
        """The cluster's machines that compute prompts, and those for tokens alone."""
        return self.cluster.split

    @property
    def label(self) -> str:
        """The cluster and its machines, like `Splitwise-HA (25, 26)`."""
        chunks = "" if self.policy.chunk_tokens is None else f", chunks of {self.policy.chunk_tokens})"
        return self.cluster.label[:-1] + chunks if chunks else self.cluster.label


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """Figures of one pool's machines, or of one of its groups.

    Attributes:
        machines: at the start.
        utilisation: share of their time in iterations, 0 to 1.
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
        pools: by name; a pool of several kinds of machine has a name for each.
        price_per_hour: of all machines at the start, US dollars.
        spent_usd: on all machines, each as long as it was there, until the last request's end.
        power: of all machines at the start, in units of a DGX-A100's.
        handoffs, handoff_bytes: KV transfers between machines.
        preemptions: sequences that lost their blocks.
        wall_s: real seconds; the only figure that varies between runs of a case.
        joined, left: machines that came and went before the last request's end.
        moved, recomputed: requests of machines that left, with their KV and computed again.
        restarted: requests of such machines whose prompts were queued, computed or handed over.
        by_priority: latencies as `latencies_s`, without `itl`, by the requests' priority where the load has several.
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
    spent_usd: float
    power: float
    handoffs: int
    handoff_bytes: float
    preemptions: int
    wall_s: float = field(compare=False)
    joined: int = 0
    left: int = 0
    moved: int = 0
    recomputed: int = 0
    restarted: int = 0
    by_priority: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    @property
    def dollars_per_1000_requests(self) -> float | None:
        """US dollars per thousand answers at this load; `None` without answers. Where machines come or go it is of the whole
        run."""
        if self.case.changes:
            return 1000 * self.spent_usd / self.completed if self.completed else None
        return 1000 * self.price_per_hour / 3600 / self.requests_per_s if self.requests_per_s else None


def require_runnable(case: Case) -> None:
    """Check all of a case but its load, in no time; raises as `simulate`."""
    lives_of(case.cluster, case.changes)
    _setup(case)


def simulate(case: Case) -> RunSummary:
    """Run a case until its last request ends.

    Raises:
        ProfileError, TraceError: a file is wrong.
        ValueError: the model does not fit a machine; policies need what no machine has; or all machines leave.
    """
    lives = lives_of(case.cluster, case.changes)
    setup = _setup(case)
    names = case.cluster.group_names
    requests = sum(1 for _ in case.workload.arrivals(case.rate, case.seconds, case.seed)) if case.verdict_only else 0
    lost = LostObjectives(requests, case.objectives) if case.verdict_only else None
    reference = setup.reference if case.objectives.alone is None else AloneOn(case.objectives.alone)
    pool_of = {life.machine_id: names[life.group] for life in lives}
    metrics = RunMetrics(reference, pool_of, case.objectives, lost, has_priorities=case.workload.has_priorities)
    world = world_of(setup, lives, metrics)
    began_s = time.perf_counter()
    with _collecting_rarely():
        try:
            result = world.run(case.workload.arrivals(case.rate, case.seconds, case.seed))
        except ObjectivesLostError:
            metrics.failed = requests - metrics.finishes.count
            result = replace(world.result(), failed=metrics.failed)
    return _summary(case, metrics, result, lives, time.perf_counter() - began_s)


def _setup(case: Case) -> ClusterSetup:
    if case.cluster.own_kinds:
        return own_setup(case.cluster, case.policy)
    return paper_setup(case.cluster, case.model, case.decode_model, case.profile, case.policy)


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
    case: Case, metrics: RunMetrics, result: WorldResult, lives: Sequence[MachineLife], wall_s: float
) -> RunSummary:
    cluster, ended_s = case.cluster, result.ended_s
    requests_per_s = metrics.steady_requests_per_s or (result.completed / ended_s if ended_s else 0.0)
    prices = [group.kind.price_per_hour for group in cluster.groups]
    return RunSummary(
        case,
        result.completed,
        result.failed,
        metrics.first_failure,
        ended_s,
        requests_per_s,
        requests_per_s * metrics.output_tokens / result.completed if result.completed else 0.0,
        _latency_figures(metrics.latencies),
        metrics.verdict(),
        {name: _pool_summary(case, name, pool, lives, ended_s) for name, pool in sorted(metrics.pools.items())},
        cluster.price_per_hour,
        sum(prices[life.group] * life.until_s(ended_s) for life in lives) / 3600,
        cluster.power,
        sum(machine.sent for machine in result.machines),
        sum(machine.sent_bytes for machine in result.machines),
        sum(machine.preemptions for machine in result.machines),
        wall_s,
        sum(life.joins and life.from_s <= ended_s for life in lives),
        sum(life.gone_s is not None and life.gone_s <= ended_s for life in lives),
        result.moved,
        result.recomputed,
        result.restarted,
        {priority: _latency_figures(own) for priority, own in sorted(metrics.by_priority.items())},
    )


def _latency_figures(latencies: Mapping[str, Percentiles]) -> dict[str, dict[str, float]]:
    """Return mean and percentiles of latencies, seconds, as far as measured."""
    figures = {
        metric: {"mean": values.mean} | {f"p{percent}": values.at(percent) for percent in PERCENTS}
        for metric, values in latencies.items()
    }
    return {
        metric: {name: seconds for name, seconds in own.items() if seconds is not None}
        for metric, own in figures.items()
    }


def _pool_summary(
    case: Case, name: str, pool: PoolFigures, lives: Sequence[MachineLife], ended_s: float
) -> PoolSummary:
    tokens, shares = time_shares(pool)
    group = case.cluster.group_names.index(name)
    present_s = sum(life.until_s(ended_s) for life in lives if life.group == group)
    return PoolSummary(
        case.cluster.groups[group].count,
        pool.busy_s / present_s if present_s else 0.0,
        pool.iterations,
        pool.decode_tokens / pool.iterations,
        tuple(tokens),
        tuple(shares),
    )
