"""Simulates machines recorded by `spotwise profile`: clusters made of them, and replays of recorded runs. All times are the
profile's; a replay's cluster and arrival times come from the run's journals, and nothing is fitted to the judged run (as
Splitwise, section 5, validates)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotwise.core.cluster.policy import PoolPolicy
from spotwise.core.cost_model import NO_LINK, BatchShape
from spotwise.core.cost_profile import CostProfile
from spotwise.core.measured_range import TimeBeyond
from spotwise.core.members import Pool
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.core.worker.push_policy import ConfiguredPushMode
from spotwise.simulator.costs.hardware import LanguageModel
from spotwise.simulator.runs.designs import Design, Hardware, Split
from spotwise.simulator.world.observation import Arrival, CompletedRequest
from spotwise.simulator.world.settings import Overlap, SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World

#: Name of a design made of recorded machines.
RECORDED = "Recorded"


@dataclass(frozen=True, slots=True)
class RecordedCluster:
    """The cluster of a recorded run.

    Attributes:
        home_pools: the pool of each worker, in order of their ids.
        kv_blocks, kv_block_size: of every worker.
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
    kind = recorded_hardware(replace(profile, kv_tokens=kv_tokens)).serving(profile.iteration)
    policy = replace(cluster.worker_policy, prefix_caching=False, kv_push=ConfiguredPushMode.SERIAL, max_in_flight=1)
    settings = replace(
        recorded_settings(profile, policy),
        pools=replace(cluster.pool_policy, prefix_spans=0),
        max_new_tokens=1,
        kv_block_size=cluster.kv_block_size,
    )
    times = _Times(beyond)
    World([SimulatedMachine(kind, home) for home in cluster.home_pools], settings, times).run(arrivals)
    return times.completed


def recorded_model(profile: CostProfile) -> LanguageModel:
    """Return the profile's language model, with the one size that a simulation uses: the KV bytes of a token."""
    return LanguageModel(profile.name, 0, 1, 1, 1, 1, value_bytes=max(1, profile.kv_bytes_per_token // 2))


def recorded_hardware(profile: CostProfile, price_per_hour: float = 0.0) -> Hardware:
    """Return the profile's machine, with its KV cache's memory."""
    memory_bytes = profile.kv_tokens * recorded_model(profile).kv_token_bytes
    bytes_per_s = (profile.link or NO_LINK).bytes_per_s
    return Hardware(profile.name, profile.name, memory_bytes, bytes_per_s, price_per_hour, 0.0)


def recorded_design(profile: CostProfile, split: Split, price_per_hour: float = 0.0) -> Design:
    """Return a cluster of recorded machines, in two pools or all mixed; raises ValueError if two pools hand KV over and the
    profile has no link cost."""
    if split.token:
        _ = profile.known_link
    hardware = recorded_hardware(profile, price_per_hour)
    return Design(RECORDED, hardware, hardware if split.token else None)


def recorded_settings(profile: CostProfile, policy: WorkerPolicy) -> WorldSettings:
    """Return the world of recorded machines."""
    return WorldSettings(
        recorded_model(profile),
        policy,
        memory_share=1.0,  # the profile's memory is what was left for KV
        overlap=Overlap(None),  # its link is the visible cost of hand-offs, overlap included
        control_latency_s=profile.message_s,
        link_latency_s=(profile.link or NO_LINK).latency_s,
    )


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
