"""Collects a run's figures in bounded memory (`percentiles.py`); a failed request has no latency and breaks the SLOs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotwise.core.cost_model import BatchShape
from spotwise.core.measured_range import MeasuredRange, TimeBeyond
from spotwise.simulator.runs.lost_objectives import LostObjectives, ObjectivesLostError
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES, Uncontended
from spotwise.simulator.world.observation import Arrival, CompletedRequest

METRICS = ("ttft", "tbt", "e2e")


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
        pools: by name, in order of their first iteration.
        output_tokens: of completed requests; `prompt_tokens` and `cached_tokens`, those found in prefix caches, as well.
        finishes: answer times, seconds from the start.

    Args:
        uncontended: reference of slowdowns.
        pool_of: the pool of each machine, by its id.
        lost: ends the run at the first broken SLO; `None` lets it run to its end.
        measured: range of the machines' profile, whose excess `beyond` counts; `None` counts nothing.
    """

    def __init__(
        self,
        uncontended: Uncontended,
        pool_of: Mapping[str, str],
        lost: LostObjectives | None = None,
        measured: MeasuredRange | None = None,
    ) -> None:
        self._uncontended = uncontended
        self._pool_of = pool_of
        self._lost = lost
        self.beyond = None if measured is None else TimeBeyond(measured)
        self.latencies = {metric: Percentiles() for metric in (*METRICS, "itl")}
        self.slowdowns = {metric: Percentiles() for metric in METRICS}
        self.pools: dict[str, PoolFigures] = {}
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
        self._count("ttft", request.ttft_s, alone.ttft_s)
        self._count("e2e", request.e2e_s, alone.e2e_s)
        if request.tbt_s is not None and alone.tbt_s is not None:
            self._count("tbt", request.tbt_s, alone.tbt_s)

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
        if self.beyond is not None:
            self.beyond.count(shape, seconds)

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        """Count gaps between tokens."""
        self.latencies["itl"].add_all(gaps_s, tokens)

    def _count(self, metric: str, seconds: float, alone_s: float) -> None:
        self.latencies[metric].add(seconds)
        self.slowdowns[metric].add(seconds / alone_s)
        if self._lost is not None:
            self._lost.count(metric, seconds / alone_s)

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
        """Compare the slowdowns with the paper's SLOs."""
        return Verdict(
            {
                metric: tuple(
                    (self.slowdowns[metric].at(percent) or 0.0, bound)
                    for percent, bound in zip(PERCENTS, bounds, strict=True)
                )
                for metric, bounds in SPLITWISE_OBJECTIVES.items()
            },
            self.failed,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether SLOs hold.

    Attributes:
        slowdowns: by metric and at each of `PERCENTS`, ours and the upper bound.
        failed: requests without an answer.
    """

    slowdowns: Mapping[str, tuple[tuple[float, float], ...]]
    failed: int

    @property
    def holds(self) -> bool:
        """Whether all SLOs hold."""
        return not self.failed and not self.broken

    @property
    def broken(self) -> list[str]:
        """Broken SLOs, like `tbt p99`."""
        return [
            f"{metric} p{percent}"
            for metric, figures in self.slowdowns.items()
            for percent, (slowdown, bound) in zip(PERCENTS, figures, strict=True)
            if not slowdown < bound
        ]


def time_shares(pool: PoolFigures) -> tuple[list[int], list[float]]:
    """Return tokens of an iteration, ascending, and the share of the busy time with at most so many (Splitwise, figure 17)."""
    tokens = sorted(pool.seconds_by_tokens)
    passed, shares = 0.0, []
    for number in tokens:
        passed += pool.seconds_by_tokens[number]
        shares.append(passed / pool.busy_s)
    return tokens, shares
