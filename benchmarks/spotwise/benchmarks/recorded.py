"""Simulates recorded runs again. All times are the profile's; cluster and arrival times come from the run's journals, and
nothing is fitted to the judged run (as Splitwise, section 5, validates)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.costs.cost_profile import CostProfile, TimeBeyond
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.kv.push_policy import ConfiguredPushMode
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.simulator.runs.own_machines import OwnMachine, own_world
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.simulator.world.settings import SimulatedMachine
from spotwise.simulator.world.world import World


@dataclass(frozen=True, slots=True)
class RecordedCluster:
    """The cluster of a recorded run.

    Attributes:
        home_pools: the pool of each worker, in order of their ids.
        kv_blocks, kv_block_size: blocks of every worker, and tokens of a block.
    """

    home_pools: tuple[Pool, ...]
    kv_blocks: int
    kv_block_size: int
    worker_policy: WorkerPolicy
    pool_policy: PoolPolicy


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Latencies of one request, from its arrival at the gateway; TPOT is `None` with a single token."""

    ttft_s: float
    tpot_s: float | None
    e2e_s: float


def simulate_recorded(
    cluster: RecordedCluster, profile: CostProfile, arrivals: Iterable[Arrival], beyond: TimeBeyond | None = None
) -> list[RequestTimes]:
    """Serve the arrivals by a simulated copy of the cluster; times in completion order. Outputs have their requested lengths,
    as in a run that ignores end-of-sequence tokens. `beyond` counts the iterations. Raises ValueError if several pools hand KV
    over and the profile has no link cost, or a request fails."""
    if len(set(cluster.home_pools)) > 1:
        _ = profile.known_link
    kv_tokens = cluster.kv_blocks * cluster.kv_block_size
    machine = OwnMachine(profile.name, replace(profile, kv_tokens=kv_tokens))
    policy = replace(cluster.worker_policy, prefix_caching=False, kv_push=ConfiguredPushMode.SERIAL, max_in_flight=1)
    settings = replace(
        own_world([machine], policy),
        pools=replace(cluster.pool_policy, prefix_spans=0),
        max_new_tokens=1,
        kv_block_size=cluster.kv_block_size,
    )
    times = _Times(beyond)
    kind = machine.machine_type(settings.model)
    machines = [SimulatedMachine(kind, home, overlap=machine.overlap) for home in cluster.home_pools]
    World(machines, settings, times).run(arrivals)
    return times.completed


def arrivals_of(requests: Sequence[tuple[float, int, int]]) -> list[Arrival]:
    """Return requests, given as (Unix seconds, prompt tokens, output tokens), as arrivals from the first one on."""
    ordered = sorted(requests)
    return [Arrival(at_s - ordered[0][0], prompt_tokens, output) for at_s, prompt_tokens, output in ordered]


class _Times:
    def __init__(self, beyond: TimeBeyond | None) -> None:
        self.completed: list[RequestTimes] = []
        self._beyond = beyond

    def request_completed(self, request: CompletedRequest) -> None:
        further = request.arrival.output_tokens - 1
        tpot_s = (request.finished_s - request.first_token_s) / further if further else None
        self.completed.append(RequestTimes(request.ttft_s, tpot_s, request.e2e_s))

    def request_failed(self, arrival: Arrival, reason: str) -> None:
        raise ValueError(f"a recorded request of {arrival.prompt_tokens} tokens failed in the simulation: {reason}")

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        if self._beyond is not None:
            self._beyond.count(shape, seconds)

    def tokens_spaced(self, gaps_s: Sequence[float], tokens: int = 1) -> None:
        pass
