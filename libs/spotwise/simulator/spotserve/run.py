"""A run on spot instances and its outcome. After the trace the simulation continues with the remaining instances until every
request is answered, nothing happens any more, or a bound is reached. Latency is E2E, queueing included; the artifact counts
only `finished_in_trace`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from spotwise.core.messages.fleet import Market
from spotwise.core.parallel.config import ParallelConfig
from spotwise.files.spot_traces import SpotTrace
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.fleet import PaidLife
from spotwise.simulator.spotserve.pricing import PurchaseTerms
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings, SpotSystem

#: From a trace's end to a run's bound: more than any fleet that serves its load needs.
DRAIN_S = 86_400.0
#: A run in which nothing has happened for so long after its trace ends there: longer than any wait of a system.
STALL_S = 3600.0


@dataclass(frozen=True, slots=True)
class SpotRun:
    """A run.

    Attributes:
        trace: instances that join at 0 s have the weights loaded.
        required_rate: requests a second for configurations, unless the trace sets another; `None` measures the last `window_s`.
        on_demand_nodes: nodes of the trace that are not preemptible, for the bill.
        drain_s: from the trace's end to the bound, at which the run ends also with unfinished requests.
        keeps_rate: after the trace the rate measured at its end holds, though no more requests arrive; the paper's studies
            measure on.
        market: instances are bought, and those of the trace are what can be had; `None`: they come and go by themselves.
    """

    trace: SpotTrace
    arrivals: SpotArrivals
    model: SpotModel
    system: SpotSystem
    surroundings: SpotSurroundings = field(default_factory=SpotSurroundings)
    required_rate: float | None = None
    on_demand_nodes: tuple[str, ...] = ()
    drain_s: float = DRAIN_S
    keeps_rate: bool = False
    market: PurchaseTerms | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.drain_s < inf:
            raise ValueError(f"a run needs a bound: `drain_s` is {self.drain_s}, not a finite time of at least 0")
        if self.market is not None and not self.system.adapts:
            raise ValueError(f"{self.system.name} chooses no configurations, so that no market can buy for them")

    @property
    def bound_s(self) -> float:
        """When the run ends at the latest."""
        return self.trace.end_s + self.drain_s


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request with its last token.

    Attributes:
        interruptions: times that a reconfiguration stopped its batch.
        recomputed_tokens: prompt and output tokens computed more than once.
    """

    arrived_s: float
    finished_s: float
    interruptions: int
    recomputed_tokens: int

    @property
    def latency_s(self) -> float:
        """E2E seconds."""
        return self.finished_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class UnfinishedRequest:
    """A request without its last token when the run ended.

    Attributes:
        output_tokens: decoded by then, and kept.
        interruptions, recomputed_tokens: as of an answered one.
    """

    arrived_s: float
    output_tokens: int
    interruptions: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A reconfiguration.

    Attributes:
        time_s: when the old pipelines stopped.
        config: the new configuration; `None` for none.
        instances: up without a notice.
        pause_s: until the last of its pipelines served; 0 where none stopped.
        moved_bytes: between devices.
        storage_bytes: loaded from storage.
        migration_s: T_mig by the paper's formula.
    """

    time_s: float
    config: ParallelConfig | None
    instances: int
    pause_s: float = 0.0
    moved_bytes: int = 0
    storage_bytes: int = 0
    migration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SpotOutcome:
    """The outcome of a run.

    Attributes:
        requests: the answered ones, in arrival order.
        unfinished: the others, in arrival order.
        changes: reconfigurations, by time.
        lives: billed stays of instances.
        ended_s: when the trace and the last request had ended, when nothing had happened for `STALL_S`, or the bound.
        spent: dollars for the instances that a market sold; `None` without a market.
        chosen: configurations that a market bought for, each from its time on.
        why_unfinished: what kept the others from an answer; empty without any.
    """

    requests: tuple[AnsweredRequest, ...]
    unfinished: tuple[UnfinishedRequest, ...]
    changes: tuple[ConfigChange, ...]
    lives: tuple[PaidLife, ...]
    trace_end_s: float
    ended_s: float
    spent: float | None = None
    chosen: tuple[tuple[float, ParallelConfig | None], ...] = ()
    why_unfinished: str = ""

    @property
    def latencies_s(self) -> tuple[float, ...]:
        """E2E seconds of the answered requests, in arrival order."""
        return tuple(request.latency_s for request in self.requests)

    def finished_in_trace(self) -> tuple[AnsweredRequest, ...]:
        """Return the requests answered before the trace ended, as the artifact counts them."""
        return tuple(request for request in self.requests if request.finished_s <= self.trace_end_s)

    @property
    def interrupted_requests(self) -> int:
        """Requests whose batch a reconfiguration stopped."""
        return sum(request.interruptions > 0 for request in self._all_requests())

    @property
    def recomputed_tokens(self) -> int:
        """Prompt and output tokens computed more than once."""
        return sum(request.recomputed_tokens for request in self._all_requests())

    def arrivals_s(self) -> list[float]:
        """Return the arrival times of all requests, in order."""
        return sorted(request.arrived_s for request in self._all_requests())

    def _all_requests(self) -> Iterator[AnsweredRequest | UnfinishedRequest]:
        yield from self.requests
        yield from self.unfinished

    def instance_s(self, market: Market, until_s: float = inf) -> float:
        """Return the billed seconds in a market, up to a time."""
        return sum(life.seconds(until_s) for life in self.lives if life.market is market)

    def cost(self, spot_price_per_h: float, on_demand_price_per_h: float, until_s: float = inf) -> float:
        """Return the price of all instances, in the currency of the prices."""
        paid = self.instance_s(Market.SPOT, until_s) * spot_price_per_h
        return (paid + self.instance_s(Market.ON_DEMAND, until_s) * on_demand_price_per_h) / 3600.0
