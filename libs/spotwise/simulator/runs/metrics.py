"""Collects a run's figures in bounded memory (`percentiles.py`); a failed request has no latency and breaks the SLOs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.costs.cost_profile import Extrapolation, TimeBeyond
from spotwise.simulator.runs.clusters import MachineKind
from spotwise.simulator.runs.own_machines import OwnMachine
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import (
    MEASURED,
    METRICS,
    PERCENTS,
    SPLITWISE_SLOS,
    LostObjectives,
    Objectives,
    ObjectivesLostError,
    Uncontended,
)
from spotwise.simulator.world.observation import Arrival, CompletedRequest


@dataclass(frozen=True, slots=True)
class KindBeyond:
    """The shares of the time of all machines of one kind, by its name."""

    kind: str
    beyond: Extrapolation


@dataclass(frozen=True, slots=True)
class BeyondProfiles:
    """Which part of the iterations' time is extrapolated, of the kinds of machine whose profiles say how far they measured.

    Attributes:
        share: share of the time of all these machines together, 0 to 1.
        kinds: at least one, in the cluster's order.
    """

    share: float
    kinds: tuple[KindBeyond, ...]


class TimeBeyondProfiles:
    """Adds up the time of iterations by kind of machine, and of those beyond its profile's range; nothing of kinds that have
    none. `kinds` are by the machines' ids."""

    def __init__(self, kinds: Mapping[str, MachineKind]) -> None:
        self._of_kind: dict[OwnMachine, TimeBeyond] = {}
        self._of_machine: dict[str, TimeBeyond] = {}
        for machine_id, kind in kinds.items():
            if isinstance(kind, OwnMachine) and kind.profile.measured is not None:
                of_kind = self._of_kind.get(kind) or self._of_kind.setdefault(kind, TimeBeyond(kind.profile.measured))
                self._of_machine[machine_id] = of_kind

    def count(self, machine_id: str, shape: BatchShape, seconds: float) -> None:
        """Count a machine's iterations of this shape, `seconds` long in all."""
        beyond = self._of_machine.get(machine_id)
        if beyond is not None:
            beyond.count(shape, seconds)

    def in_all(self) -> BeyondProfiles | None:
        """Return the shares so far; `None` where no profile says how far it measured."""
        if not self._of_kind:
            return None
        total_s = sum(each.total_s for each in self._of_kind.values()) or 1.0
        share = sum(each.beyond_s for each in self._of_kind.values()) / total_s
        return BeyondProfiles(
            share, tuple(KindBeyond(kind.name, each.extrapolation()) for kind, each in self._of_kind.items())
        )


@dataclass(slots=True)
class PoolFigures:
    """Totals of one pool's machines.

    Attributes:
        busy_s: seconds in iterations.
        seconds_by_tokens: the same by the iteration's tokens, prompt tokens and decodes.
    """

    busy_s: float = 0.0
    seconds_by_tokens: dict[int, float] = field(default_factory=dict)
    iterations: int = 0
    decode_tokens: int = 0


class RunMetrics:
    """The `Observer` of a run that keeps its figures.

    Attributes:
        latencies: seconds by metric; `itl` are gaps between tokens, over all tokens of all requests.
        pools: figures of each pool, by name, in order of their first iteration.
        by_priority: latencies of `METRICS`, by the requests' priority.
        output_tokens: output tokens of completed requests; `prompt_tokens` and `cached_tokens`, those found in prefix
            caches, as well.
        finishes: answer times, seconds from the start.

    Args:
        uncontended: reference of slowdowns.
        pool_of: the pool of each machine, by its id.
        objectives: objectives of the verdict.
        has_priorities: keep latencies by priority, too.
        lost: ends the run at the first broken SLO; `None` lets it run to its end.
        beyond: counts iterations beyond what the machines' profiles measured; `None`: nothing does.
    """

    def __init__(
        self,
        uncontended: Uncontended,
        pool_of: Mapping[str, str],
        objectives: Objectives = SPLITWISE_SLOS,
        lost: LostObjectives | None = None,
        *,
        has_priorities: bool = False,
        beyond: TimeBeyondProfiles | None = None,
    ) -> None:
        self._has_priorities = has_priorities
        self._uncontended = uncontended
        self._objectives = objectives
        self._pool_of = pool_of
        self._lost = lost
        self._beyond = beyond
        self.latencies = {metric: Percentiles() for metric in MEASURED}
        self.slowdowns = {metric: Percentiles() for metric in METRICS}
        self.pools: dict[str, PoolFigures] = {}
        self.by_priority: dict[int, dict[str, Percentiles]] = {}
        self.failed = 0
        self.first_failure: str | None = None
        self.output_tokens = self.prompt_tokens = self.cached_tokens = 0
        self.finishes = Percentiles()

    def request_completed(self, request: CompletedRequest) -> None:
        """Count a request's latencies; raises ObjectivesLostError if an SLO is broken and only the verdict matters."""
        self.output_tokens += request.arrival.output_tokens
        self.prompt_tokens += request.arrival.prompt_tokens
        self.cached_tokens += request.cached_tokens
        self.finishes.add(request.finished_s)
        alone = self._uncontended.latencies(request.arrival)
        if self._has_priorities:
            self._count_by_priority(request)
        self._count("ttft", request.ttft_s, alone.ttft_s)
        self._count("e2e", request.e2e_s, alone.e2e_s)
        if request.tbt_s is not None and alone.tbt_s is not None:
            self._count("tbt", request.tbt_s, alone.tbt_s)

    def _count_by_priority(self, request: CompletedRequest) -> None:
        own = self.by_priority.setdefault(request.arrival.priority, {metric: Percentiles() for metric in METRICS})
        for metric, seconds in (("ttft", request.ttft_s), ("tbt", request.tbt_s), ("e2e", request.e2e_s)):
            if seconds is not None:
                own[metric].add(seconds)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """Count an unanswered request; raises ObjectivesLostError if only the verdict matters."""
        self.failed += 1
        self.first_failure = self.first_failure or reason
        if self._lost is not None:
            raise ObjectivesLostError

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """Count a machine's iterations."""
        name = self._pool_of[machine_id]
        pool = self.pools.get(name) or self.pools.setdefault(name, PoolFigures())
        pool.busy_s += seconds
        tokens = shape.prompt_tokens + shape.decodes
        pool.seconds_by_tokens[tokens] = pool.seconds_by_tokens.get(tokens, 0.0) + seconds
        pool.iterations += iterations
        pool.decode_tokens += shape.decodes * iterations
        if self._beyond is not None:
            self._beyond.count(machine_id, shape, seconds)

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        """Count gaps between tokens."""
        self.latencies["itl"].add_all(gaps_s, tokens)

    def _count(self, metric: str, seconds: float, alone_s: float) -> None:
        self.latencies[metric].add(seconds)
        self.slowdowns[metric].add(seconds / alone_s)
        if self._lost is not None:
            self._lost.count(metric, seconds, seconds / alone_s)

    @property
    def beyond(self) -> BeyondProfiles | None:
        """What part of the time the machines' profiles did not measure; `None` where that is not known."""
        return None if self._beyond is None else self._beyond.in_all()

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that were found in prefix caches, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def steady_requests_per_s(self) -> float | None:
        """Answers a second between a quarter and three quarters of all (steady state); `None` where these came at one
        moment."""
        first_s, last_s = self.finishes.at(25), self.finishes.at(75)
        if first_s is None or last_s is None or first_s == last_s:
            return None
        return 0.5 * self.finishes.count / (last_s - first_s)

    def verdict(self) -> Verdict:
        """Compare latencies and slowdowns with the objectives."""
        in_seconds = {bound.metric for bound in self._objectives.bounds if not bound.is_slowdown}
        return Verdict(
            {metric: self._judged(metric, of, is_slowdown=True) for metric, of in self.slowdowns.items()},
            self.failed,
            {
                metric: self._judged(metric, of, is_slowdown=False)
                for metric, of in self.latencies.items()
                if metric in in_seconds
            },
        )

    def _judged(self, metric: str, values: Percentiles, *, is_slowdown: bool) -> Judged:
        bounds = self._objectives.of(metric, is_slowdown=is_slowdown)
        return tuple((values.at(percent) or 0.0, bound) for percent, bound in zip(PERCENTS, bounds, strict=True))


#: A metric's figure at each of `PERCENTS`, and its upper bound; `None` where there is no objective.
Judged = tuple[tuple[float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether SLOs hold.

    Attributes:
        slowdowns: slowdown of each metric.
        failed: requests without an answer.
        seconds: latencies, by metric, of those with objectives in seconds.
    """

    slowdowns: Mapping[str, Judged]
    failed: int
    seconds: Mapping[str, Judged] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether all SLOs hold."""
        return not self.failed and not self.broken

    @property
    def broken(self) -> list[str]:
        """Broken SLOs, like `tbt p99`, or `tbt p99 in seconds`."""
        return [
            f"{metric} p{percent}{unit}"
            for judged, unit in ((self.slowdowns, ""), (self.seconds, " in seconds"))
            for metric, figures in judged.items()
            for percent, (ours, bound) in zip(PERCENTS, figures, strict=True)
            if bound is not None and not ours < bound
        ]

    @property
    def bounds(self) -> int:
        """Number of SLOs."""
        both = (*self.slowdowns.values(), *self.seconds.values())
        return sum(bound is not None for figures in both for _, bound in figures)


def time_shares(pool: PoolFigures) -> tuple[list[int], list[float]]:
    """Return tokens of an iteration, ascending, and the share of the busy time with at most so many (Splitwise, figure 17)."""
    tokens = sorted(pool.seconds_by_tokens)
    passed, shares = 0.0, []
    for number in tokens:
        passed += pool.seconds_by_tokens[number]
        shares.append(passed / pool.busy_s)
    return tokens, shares
