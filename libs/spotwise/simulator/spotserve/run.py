"""A run on machines that come and go, and its outcome.

Every request is answered: the world continues after the trace with the instances that are there. Latency is from arrival to
last token, queueing included. The artifact counts only requests that end before the trace does: `finished_in_trace`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from spotwise.core.parallel.config import ParallelConfig
from spotwise.simulator.spotserve.arrivals import SpotArrivals
from spotwise.simulator.spotserve.fleet import PaidLife, SpotMarket
from spotwise.simulator.spotserve.systems import SpotModel, SpotSurroundings, SpotSystem
from spotwise.simulator.spotserve.traces import SpotTrace


@dataclass(frozen=True, slots=True)
class SpotRun:
    """A run.

    Attributes:
        trace: which instances come and go. Those that come at 0 s have the weights already.
        arrivals: the requests.
        model: what is served, and what it takes.
        system: what serves.
        surroundings: notices, links, and what else all systems share.
        required_rate: requests a second that configurations must serve; the trace may say otherwise from some time on. `None`:
            what came in the last `window_s`.
        on_demand_nodes: nodes of the trace that are not preemptible, for the bill.
    """

    trace: SpotTrace
    arrivals: SpotArrivals
    model: SpotModel
    system: SpotSystem
    surroundings: SpotSurroundings = field(default_factory=SpotSurroundings)
    required_rate: float | None = None
    on_demand_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request with its last token.

    Attributes:
        arrived_s: when it came.
        finished_s: when it had its last token.
        interruptions: times that its batch was stopped by a change.
        recomputed_tokens: tokens of prompt and answer that were computed more than once.
    """

    arrived_s: float
    finished_s: float
    interruptions: int
    recomputed_tokens: int

    @property
    def latency_s(self) -> float:
        """From arrival to last token."""
        return self.finished_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of the configuration.

    Attributes:
        time_s: when the pipelines before it stopped.
        config: what stands; `None`: nothing.
        instances: that are there, without notice.
        pause_s: until the last of its pipelines served; 0 where none stopped.
        moved_bytes: between devices.
        storage_bytes: loaded anew.
        migration_s: T_mig as the paper reckons it.
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
        requests: all, in the order in which they came.
        changes: of configurations, by time.
        lives: of instances, as paid for.
        trace_end_s: when the trace ended.
        ended_s: when the world ended: the trace was over, and the last request answered.
        output_tokens: of a request.
    """

    requests: tuple[AnsweredRequest, ...]
    changes: tuple[ConfigChange, ...]
    lives: tuple[PaidLife, ...]
    trace_end_s: float
    ended_s: float
    output_tokens: int

    @property
    def latencies_s(self) -> tuple[float, ...]:
        """Of all requests, in the order in which they came."""
        return tuple(request.latency_s for request in self.requests)

    def finished_in_trace(self) -> tuple[AnsweredRequest, ...]:
        """Return the requests answered before the trace ended, as the artifact counts them."""
        return tuple(request for request in self.requests if request.finished_s <= self.trace_end_s)

    @property
    def interrupted_requests(self) -> int:
        """Requests whose batch a change stopped."""
        return sum(request.interruptions > 0 for request in self.requests)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of prompts and answers that were computed more than once."""
        return sum(request.recomputed_tokens for request in self.requests)

    def instance_s(self, market: SpotMarket, until_s: float = inf) -> float:
        """Return the seconds that are paid for in a market, up to a time."""
        return sum(life.seconds(until_s) for life in self.lives if life.market is market)

    def cost(self, spot_price_per_h: float, on_demand_price_per_h: float, until_s: float = inf) -> float:
        """Return the price of all instances, in the currency of the prices."""
        paid = self.instance_s(SpotMarket.SPOT, until_s) * spot_price_per_h
        return (paid + self.instance_s(SpotMarket.ON_DEMAND, until_s) * on_demand_price_per_h) / 3600.0
