"""Figures of a run, and the part of it that is its steady state.

A mean latency of a tenth of the time in which requests arrive means that a tenth of all were live at a time. With more, the run
filled up for a good part of its time, or arrivals exceed what is served and latencies grow with the run's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.machine_changes import MachineLife
from spotwise.simulator.runs.metrics import BeyondProfiles, PoolFigures, RunMetrics, Verdict, time_shares
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import PERCENTS
from spotwise.simulator.world.observation import WorldResult

#: Largest mean latency of a steady run, over the time in which requests arrive.
STEADY_SHARE = 0.1


def is_steady(mean_latency_s: float | None, arrivals_s: float) -> bool:
    """Return whether a run is steady; one without an answer is not."""
    return mean_latency_s is not None and mean_latency_s <= STEADY_SHARE * arrivals_s


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """Figures of one pool's machines, or of one of its groups.

    Attributes:
        machines: at the start.
        utilisation: share of their time in iterations, 0 to 1.
        mean_decodes: decoding sequences of an iteration, mean over iterations.
        tokens, time_shares: the share of the busy time spent in iterations of at most that many tokens.
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
        latencies_s: latencies by metric (`ttft`, `tbt`, `e2e`, `itl`) and figure (`mean`, `p50`, `p90`, `p99`), as far
            as measured.
        pools: figures of each pool, by name; a pool of several kinds of machine has a name for each.
        price_per_hour: price of all machines at the start, US dollars.
        spent_usd: on all machines, each as long as it was there, until the last request's end.
        power: power of all machines at the start, in units of a DGX-A100's.
        handoffs, handoff_bytes: KV transfers between machines.
        preemptions: sequences that lost their blocks.
        wall_s: real seconds; the only figure that varies between runs of a case.
        joined, left: machines that came and went before the last request's end.
        moved, recomputed: requests of machines that left, with their KV and computed again.
        restarted: requests of such machines whose prompts were queued, computed or handed over.
        by_priority: latencies as `latencies_s`, without `itl`, by the requests' priority where the load has several.
        cached_share: share of the completed requests' prompt tokens that were found in prefix caches; `None` without these.
        beyond_profile: the part of the time that the machines' profiles did not measure; `None` where none says how far it did.
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
    cached_share: float | None = None
    beyond_profile: BeyondProfiles | None = None

    @property
    def is_steady(self) -> bool:
        """Whether it reached a steady state; of a run to its end."""
        return is_steady(self.latencies_s.get("e2e", {}).get("mean"), self.case.seconds or self.ended_s)

    @property
    def dollars_per_1000_requests(self) -> float | None:
        """US dollars per thousand answers at this load; `None` without answers. Where machines come or go it is of the whole
        run."""
        if self.case.changes:
            return 1000 * self.spent_usd / self.completed if self.completed else None
        return 1000 * self.price_per_hour / 3600 / self.requests_per_s if self.requests_per_s else None


def summary_of(
    case: Case, metrics: RunMetrics, result: WorldResult, lives: Sequence[MachineLife], wall_s: float
) -> RunSummary:
    """Return the summary of a run that has ended."""
    cluster, ended_s = case.cluster, result.ended_s
    requests_per_s = metrics.steady_requests_per_s or (result.completed / ended_s if ended_s else 0.0)
    prices = [group.kind.price_per_hour for group in cluster.groups]
    return RunSummary(
        case=case,
        completed=result.completed,
        failed=result.failed,
        first_failure=metrics.first_failure,
        ended_s=ended_s,
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * metrics.output_tokens / result.completed if result.completed else 0.0,
        latencies_s=_latency_figures(metrics.latencies),
        verdict=metrics.verdict(),
        pools={name: _pool_summary(case, name, pool, lives, ended_s) for name, pool in sorted(metrics.pools.items())},
        price_per_hour=cluster.price_per_hour,
        spent_usd=sum(prices[life.group] * life.until_s(ended_s) for life in lives) / 3600,
        power=cluster.power,
        handoffs=sum(machine.sent for machine in result.machines),
        handoff_bytes=sum(machine.sent_bytes for machine in result.machines),
        preemptions=sum(machine.preemptions for machine in result.machines),
        wall_s=wall_s,
        joined=sum(life.joins and life.from_s <= ended_s for life in lives),
        left=sum(life.gone_s is not None and life.gone_s <= ended_s for life in lives),
        moved=result.moved,
        recomputed=result.recomputed,
        restarted=result.restarted,
        by_priority={priority: _latency_figures(own) for priority, own in sorted(metrics.by_priority.items())},
        cached_share=metrics.cached_share if case.caches_prefixes else None,
        beyond_profile=metrics.beyond,
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
        machines=case.cluster.groups[group].count,
        utilisation=pool.busy_s / present_s if present_s else 0.0,
        iterations=pool.iterations,
        mean_decodes=pool.decode_tokens / pool.iterations,
        tokens=tuple(tokens),
        time_shares=tuple(shares),
    )
