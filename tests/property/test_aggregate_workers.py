"""Decodes counted in groups: the same decisions at the same times as those of a role that handles each of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import PiecewiseLinear, TableIterationCost
from spotwise.core.messages.members import Pool
from spotwise.core.scheduler.policy import DecodeQueue, PoolPolicy
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.simulator.world.aggregate_worker import AggregateWorker
from spotwise.simulator.world.held_requests import AggregateWork
from spotwise.simulator.world.machine_worker import Site
from spotwise.simulator.world.observation import Arrival, WorldResult
from spotwise.simulator.world.settings import Overlap, SimulatedMachine, WorldSettings
from spotwise.simulator.world.stepped_worker import SteppedWorker
from spotwise.simulator.world.stepwise import aggregated, stepped
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds

TABLE = TableIterationCost(
    PiecewiseLinear((64.0, 256.0, 1024.0), (0.02, 0.05, 0.2)),
    PiecewiseLinear((1.0, 4.0, 16.0), (0.01, 0.012, 0.02)),
    1e-7,
    2e-6,
)


@pytest.fixture
def handovers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often roles took over, and gave up."""
    return _count_handovers(monkeypatch)


def _count_handovers(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()

    def count_stepped(work: AggregateWork) -> SteppedWorker:
        counted["stepped"] += 1
        return stepped(work)

    def count_aggregated(worker: SteppedWorker, site: Site) -> AggregateWorker | None:
        found = aggregated(worker, site)
        counted["aggregated"] += found is not None
        return found

    monkeypatch.setattr("spotwise.simulator.world.machine.stepped", count_stepped)
    monkeypatch.setattr("spotwise.simulator.world.machine.aggregated", count_aggregated)
    return counted


def load(seed: int, requests: int, seconds: float) -> list[Arrival]:
    rng = random.Random(seed)
    times = sorted(rng.uniform(0.0, seconds) for _ in range(requests))
    return [Arrival(at_s, rng.randint(1, 400), min(1 + int(rng.expovariate(1 / 40)), 160)) for at_s in times]


def run(
    cluster: list[SimulatedMachine], chosen: WorldSettings, arrivals: list[Arrival]
) -> tuple[WorldResult, worlds.Diary]:
    diary = worlds.Diary()
    return World(cluster, chosen, diary).run(arrivals), diary


def assert_same(cluster: list[SimulatedMachine], chosen: WorldSettings, arrivals: list[Arrival]) -> None:
    """Each request's times to the last bit, each machine's totals, and as many gaps of each length."""
    steps, groups = (run(cluster, replace(chosen, aggregates=aggregates), arrivals) for aggregates in (False, True))
    assert steps[1].completed == groups[1].completed
    assert steps[1].failed == groups[1].failed
    for one, other in zip(steps[0].machines, groups[0].machines, strict=True):
        # how many tokens had blocks is noted where an order begins, and orders of groups are longer
        assert replace(one, peak_kv_tokens=0) == replace(other, peak_kv_tokens=0)
        assert steps[1].run_by(one.machine_id) == groups[1].run_by(one.machine_id)
        assert steps[1].busy_s(one.machine_id) == pytest.approx(groups[1].busy_s(one.machine_id), abs=1e-9)
    gaps = [Counter[float](), Counter[float]()]
    for counted, diary in zip(gaps, (steps[1], groups[1]), strict=True):
        for gap_s, tokens in diary.gaps:
            counted[gap_s] += tokens
    assert gaps[0] == gaps[1]


SETTINGS = st.builds(
    worlds.settings,
    st.builds(
        WorkerPolicy,
        st.builds(
            BatchLimits,
            max_num_seqs=st.sampled_from([4, 16, 256]),
            max_prompt_tokens=st.sampled_from([300, 2048]),
            decodes_pause=st.booleans(),
        ),
        prefix_caching=st.just(False),
        watermark=st.sampled_from([0.0, 0.01, 0.1]),
        preempt_after_s=st.sampled_from([0.0, 1.0]),
        max_preemptions=st.sampled_from([1, 3]),
    ),
    pools=st.builds(
        PoolPolicy,
        max_pending_prompt_tokens=st.sampled_from([200, 8192]),
        decode_queue=st.sampled_from(DecodeQueue),
        break_even=st.booleans(),
        repurpose_window_s=st.sampled_from([None, 2.0]),
        prefix_spans=st.just(0),
    ),
    max_new_tokens=st.sampled_from([160, 400]),
    knows_output=st.booleans(),
    control_latency_s=st.sampled_from([0.0, 0.0005]),
    link_latency_s=st.sampled_from([0.0, 0.00001]),
    private_link_bytes_per_s=st.sampled_from([None, 1e6]),
    overlap=st.sampled_from([Overlap(None), Overlap(100)]),
    news_interval_s=st.sampled_from([0.0, 0.02]),
    beats_after_endings=st.booleans(),
    kv_block_size=st.sampled_from([1, 16]),
)
CLUSTERS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)).filter(
    lambda counts: counts[1] + counts[2] > 0
)


#: A kind of machine in one pool: the last two of its own, or the world's.
KINDS = st.builds(
    lambda kv_tokens, cost, latency_s, policy, overlap: SimulatedMachine(
        replace(worlds.machine_type(kv_tokens, link_bytes_per_s=3e6, cost=cost), link_latency_s=latency_s),
        Pool.MIXED,
        policy,
        overlap,
    ),
    st.sampled_from([560, 800, 1500, 6000]),
    st.sampled_from([worlds.COST, TABLE]),
    st.sampled_from([None, 0.0, 0.01]),
    st.sampled_from([None, WorkerPolicy(prefix_caching=False, scheduling=Scheduling.PRIORITY)]),
    st.sampled_from([None, Overlap(None), Overlap(100, 3)]),
)


@given(
    st.integers(0, 10**6),
    st.integers(1, 60),
    CLUSTERS,
    SETTINGS,
    st.sampled_from([1.0, 4.0]),
    st.lists(KINDS, min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_groups_decide_as_single_sequences_do(
    seed: int,
    requests: int,
    counts: tuple[int, int, int],
    chosen: WorldSettings,
    seconds: float,
    kinds: list[SimulatedMachine],
) -> None:
    """However tight memory is, and however machines differ: a role takes over before its first decision, and gives up once
    memory is ample."""
    homes = [machine.home_pool for machine in worlds.machines(*counts)]
    cluster = [replace(kinds[number % len(kinds)], home_pool=home) for number, home in enumerate(homes)]
    with pytest.MonkeyPatch.context() as patch:
        handovers = _count_handovers(patch)
        assert_same(cluster, chosen, load(seed, requests, seconds))
    event(f"taken over: {bool(handovers['stepped'])}, given up: {bool(handovers['aggregated'])}")


@pytest.mark.parametrize("seed", range(3))
def test_machines_go_from_groups_to_roles_and_back(seed: int, handovers: Counter[str]) -> None:
    """A load that comes and goes, on machines that are full at its height."""
    arrivals = [
        replace(arrival, at_s=arrival.at_s + start_s)
        for start_s in (0.0, 20.0)
        for arrival in load(seed + int(start_s), 300, 8.0)
    ]
    cluster = worlds.machines(2, 2, 1, kind=worlds.machine_type(2000, cost=TABLE))
    assert_same(cluster, worlds.settings(max_new_tokens=400, control_latency_s=0.0005), arrivals)
    assert min(handovers["stepped"], handovers["aggregated"]) > 5
