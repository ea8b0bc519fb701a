"""The figures of a simulated run, gathered while it runs.

Law: memory does not grow with the run; what is lost for that is a quarter of a percent of a percentile (`percentiles.py`).
Every request that arrived counts: one that failed keeps the objectives from holding, since its latency is unknown and not
small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotwise.core.cost_model import BatchShape
from spotwise.simulator.runs.lost_objectives import LostObjectives, ObjectivesLostError
from spotwise.simulator.runs.percentiles import Percentiles
from spotwise.simulator.runs.slo import PERCENTS, SPLITWISE_OBJECTIVES, Uncontended
from spotwise.simulator.world.observation import Arrival, CompletedRequest

METRICS = ("ttft", "tbt", "e2e")


@dataclass(slots=True)
class PoolFigures:
    """What the machines of one pool did.

    Attributes:
        busy_s: seconds in iterations, all machines together.
        seconds_by_tokens: of these, by the tokens that the iteration computed: prompt tokens and decodes.
        iterations, decode_tokens: counts.
    """

    busy_s: float = 0.0
    seconds_by_tokens: dict[int, float] = field(default_factory=dict)
    iterations: int = 0
    decode_tokens: int = 0


class RunMetrics:
    """Hears of a run (`Observer`) and keeps its figures.

    Args:
        uncontended: what slowdowns are measured against.
        pool_of: the pool of each machine, by its id.
        lost: ends the run once an objective cannot hold any more; `None` lets it run to its end.

    Attributes:
        latencies: seconds by metric; `itl` are gaps between tokens, over all tokens of all requests.
        slowdowns: by metric.
        pools: by name, in order of their first iteration.
        failed: requests.
        first_failure: why the first of these did; `None` where none did.
        output_tokens: of completed requests.
        finishes: when requests were answered, seconds from the start.
    """

    def __init__(
        self, uncontended: Uncontended, pool_of: Mapping[str, str], lost: LostObjectives | None = None
    ) -> None:
        self._uncontended = uncontended
        self._pool_of = pool_of
        self._lost = lost
        self.latencies = {metric: Percentiles() for metric in (*METRICS, "itl")}
        self.slowdowns = {metric: Percentiles() for metric in METRICS}
        self.pools: dict[str, PoolFigures] = {}
        self.failed = 0
        self.first_failure: str | None = None
        self.output_tokens = 0
        self.finishes = Percentiles()

    # --- what it hears ------------------------------------------------------------------------------------------------

    def request_completed(self, request: CompletedRequest) -> None:
        """Count a request's latencies.

        Raises:
            ObjectivesLostError: an objective cannot hold any more, and nobody wants to know more than that.
        """
        self.output_tokens += request.arrival.output_tokens
        self.finishes.add(request.finished_s)
        alone = self._uncontended.latencies(request.arrival)
        self._count("ttft", request.ttft_s, alone.ttft_s)
        self._count("e2e", request.e2e_s, alone.e2e_s)
        if request.tbt_s is not None and alone.tbt_s is not None:
            self._count("tbt", request.tbt_s, alone.tbt_s)

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        """Count a request that was not answered.

        Raises:
            ObjectivesLostError: nobody wants to know more than that.
        """
        self.failed += 1
        self.first_failure = self.first_failure or reason
        if self._lost is not None:
            raise ObjectivesLostError

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        """Count what a machine computed."""
        pool = self.pools.setdefault(self._pool_of[machine_id], PoolFigures())
        pool.busy_s += seconds
        tokens = shape.prompt_tokens + shape.decodes
        pool.seconds_by_tokens[tokens] = pool.seconds_by_tokens.get(tokens, 0.0) + seconds
        pool.iterations += iterations
        pool.decode_tokens += shape.decodes * iterations

    def tokens_spaced(self, gap_s: float, tokens: int = 1) -> None:
        """Count gaps between tokens."""
        self.latencies["itl"].add(gap_s, tokens)

    def _count(self, metric: str, seconds: float, alone_s: float) -> None:
        self.latencies[metric].add(seconds)
        self.slowdowns[metric].add(seconds / alone_s)
        if self._lost is not None:
            self._lost.count(metric, seconds / alone_s)

    # --- what it tells ------------------------------------------------------------------------------------------------

    @property
    def steady_requests_per_s(self) -> float | None:
        """Answers a second between a quarter and three quarters of all; `None` where these came at one moment.

        At the start a cluster fills and at the end it empties, which in a short run is most of it.
        """
        first_s, last_s = self.finishes.at(25), self.finishes.at(75)
        if first_s is None or last_s is None or first_s == last_s:
            return None
        return 0.5 * self.finishes.count / (last_s - first_s)

    def verdict(self) -> Verdict:
        """Hold the slowdowns against the paper's objectives."""
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
    """Whether objectives hold.

    Attributes:
        slowdowns: by metric and at each of `PERCENTS`, what it is and what it must be below.
        failed: requests without an answer.
    """

    slowdowns: Mapping[str, tuple[tuple[float, float], ...]]
    failed: int

    @property
    def holds(self) -> bool:
        """Whether all of them hold."""
        return not self.failed and not self.broken

    @property
    def broken(self) -> list[str]:
        """Those that do not, like `tbt p99`."""
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
