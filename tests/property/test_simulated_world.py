"""What holds in every simulated world, however small its machines and however its requests come."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.costs.hardware import MachineType
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.network import Link, LinkTransfer, Network
from spotwise.simulator.world.observation import Arrival, WorldResult
from spotwise.simulator.world.settings import Overlap, SimulatedMachine, WorldSettings
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds


def traces(min_size: int, seconds: float) -> st.SearchStrategy[list[Arrival]]:
    sizes = (st.integers(min_value=1, max_value=150), st.integers(min_value=1, max_value=40))
    arrivals = st.builds(Arrival, st.floats(min_value=0.0, max_value=seconds), *sizes)
    return st.lists(arrivals, min_size=min_size, max_size=25).map(lambda some: sorted(some, key=lambda each: each.at_s))


TRACES = traces(1, 3.0)
#: Where one machine has memory for two or three at once.
CROWDED = traces(6, 0.6)
POLICIES = st.builds(
    WorkerPolicy,
    st.builds(
        BatchLimits,
        max_num_seqs=st.sampled_from([2, 8]),
        max_prompt_tokens=st.sampled_from([100, 2048]),
        max_num_batched_tokens=st.sampled_from([None, 24]),
    ),
    prefix_caching=st.just(False),
    watermark=st.sampled_from([0.0, 0.1]),
    preempt_after_s=st.sampled_from([0.0, 0.3]),
    max_preemptions=st.sampled_from([1, 3]),
)
POOLS = st.builds(
    PoolPolicy,
    max_pending_prompt_tokens=st.sampled_from([0, 200, 8192]),
    break_even=st.booleans(),
    repurpose_share=st.just(0.5),
    repurpose_window_s=st.sampled_from([None, 0.5]),
    prefix_spans=st.just(0),
)
SETTINGS = st.builds(
    worlds.settings,
    POLICIES,
    pools=POOLS,
    max_new_tokens=st.sampled_from([40, 80]),
    knows_output=st.booleans(),
    control_latency_s=st.sampled_from([0.0, 0.001]),
    link_latency_s=st.sampled_from([0.0, 0.002]),
    overlap=st.sampled_from([Overlap(None), Overlap(20)]),
    counted_steps=st.sampled_from([1, 64]),
)
CLUSTERS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)).filter(
    lambda counts: counts[1] + counts[2] > 0
)
#: Memory for the largest request and little more.
SMALL = worlds.machine_type(kv_tokens=256, link_bytes_per_s=1e6)


#: Disciplines whose order changes, with KV that moves or is computed again, in pipelines or not.
RANKED = st.builds(
    WorkerPolicy,
    st.builds(BatchLimits, max_num_seqs=st.sampled_from([2, 8]), max_num_batched_tokens=st.sampled_from([None, 24])),
    prefix_caching=st.just(False),
    max_preemptions=st.sampled_from([1, 3]),
    max_in_flight=st.sampled_from([1, 2]),
    scheduling=st.sampled_from(Scheduling),
    mlfq=st.builds(
        MlfqPolicy,
        st.just(0.01),
        queues=st.integers(1, 6),
        starve_limit_s=st.sampled_from([0.1, 5.0]),
        skips=st.booleans(),
    ),
    cost=st.just(worlds.COST),
    swap=st.builds(
        SwapPolicy,
        st.sampled_from([*WhenFull, WhenFull.PROACTIVE, WhenFull.REACTIVE]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
)
HOSTED = st.builds(
    lambda host_tokens, bytes_per_s: replace(
        SMALL, host_memory_bytes=host_tokens * worlds.MODEL.kv_token_bytes, host_bytes_per_s=bytes_per_s
    ),
    st.sampled_from([16, 256, 4096]),
    st.sampled_from([1e5, 1e7]),
)


@dataclass
class Watch(worlds.Diary):
    """An observer that checks the clock, too: single iterations are reported at their end, several some time later."""

    world: World | None = None
    counted: bool = False
    busy_until_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def iterations_ended(self, machine_id: str, shape: BatchShape, seconds: float, iterations: int = 1) -> None:
        assert self.world is not None
        begin_s = self.world.now - seconds
        assert begin_s >= self.busy_until_s[machine_id] - 1e-9, "two iterations at once"
        self.busy_until_s[machine_id] = self.busy_until_s[machine_id] + seconds if self.counted else self.world.now
        super().iterations_ended(machine_id, shape, seconds, iterations)


def run(cluster: list[SimulatedMachine], chosen: WorldSettings, arrivals: list[Arrival]) -> tuple[WorldResult, Watch]:
    watch = Watch(counted=chosen.followed(chosen.policy).counted_steps is not None)
    watch.world = World(cluster, chosen, watch)
    return watch.world.run(arrivals), watch


@given(TRACES, CLUSTERS, SETTINGS)
@settings(max_examples=80)
def test_every_request_ends_once_with_its_requested_tokens(
    arrivals: list[Arrival], counts: tuple[int, int, int], chosen: WorldSettings
) -> None:
    """No iteration overlaps another one, and no block is left behind, which the world looks for itself."""
    cluster = worlds.machines(*counts, kind=SMALL)
    result, watch = run(cluster, chosen, arrivals)
    assert (result.completed, result.failed) == (len(arrivals), 0)
    key = Arrival.__repr__
    assert sorted((request.arrival for request in watch.completed), key=key) == sorted(arrivals, key=key)
    assert sum(count for _, count in watch.gaps) == sum(arrival.output_tokens - 1 for arrival in arrivals)
    for request in watch.completed:
        assert 0 < request.ttft_s <= request.e2e_s


@given(CROWDED, CLUSTERS, RANKED, HOSTED, st.booleans())
@settings(max_examples=80)
def test_kv_that_moves_is_left_on_neither_side(
    arrivals: list[Arrival], counts: tuple[int, int, int], policy: WorkerPolicy, kind: MachineType, direct: bool
) -> None:
    """Every request ends with its tokens, whatever is swapped; what came back had left, and the world looks for blocks."""
    chosen = worlds.settings(policy, max_new_tokens=40, through_scheduler=not direct)
    cluster = worlds.machines(mixed=1, kind=kind) if direct else worlds.machines(*counts, kind=kind)
    result, watch = run(cluster, chosen, arrivals)
    assert (result.completed, result.failed) == (len(arrivals), 0)
    assert sum(count for _, count in watch.gaps) == sum(arrival.output_tokens - 1 for arrival in arrivals)
    for machine in result.machines:
        assert machine.swapped_in_bytes <= machine.swapped_out_bytes
        assert policy.swap.when_full.swaps or not machine.swapped_out_bytes
    swapped = any(machine.swapped_in_bytes for machine in result.machines)
    event(f"{policy.swap.when_full}: {'swapped' if swapped else 'not swapped'}")


@given(TRACES, CLUSTERS, SETTINGS)
@settings(max_examples=20)
def test_the_same_world_is_the_same_run(
    arrivals: list[Arrival], counts: tuple[int, int, int], chosen: WorldSettings
) -> None:
    first, second = (run(worlds.machines(*counts, kind=SMALL), chosen, arrivals) for _ in range(2))
    assert first[0] == second[0]
    assert first[1].completed == second[1].completed
    assert first[1].iterations == second[1].iterations


@given(TRACES, CLUSTERS, SETTINGS, st.integers(2, 40))
@settings(max_examples=80)
def test_orders_of_several_iterations_change_no_decision(
    arrivals: list[Arrival], counts: tuple[int, int, int], chosen: WorldSettings, steps: int
) -> None:
    """Every request has the same times, and every machine does the same.

    In which order two machines do what they do at the same moment is no decision of theirs.
    """
    single = run(worlds.machines(*counts, kind=SMALL), replace(chosen, counted_steps=1), arrivals)
    counted = run(worlds.machines(*counts, kind=SMALL), replace(chosen, counted_steps=steps), arrivals)
    assert sorted(single[1].completed, key=repr) == sorted(counted[1].completed, key=repr)
    for one, many in zip(single[0].machines, counted[0].machines, strict=True):
        assert (one.preemptions, one.sent) == (many.preemptions, many.sent)
        id_ = one.machine_id
        assert single[1].run_by(id_) == counted[1].run_by(id_)
        assert abs(single[1].busy_s(id_) - counted[1].busy_s(id_)) < 1e-9


TRANSFERS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.floats(min_value=0.0, max_value=5.0),
        st.floats(min_value=0.0, max_value=300.0),
        st.floats(min_value=0.0, max_value=100.0),
    ),
    max_size=15,
)


@given(TRANSFERS)
def test_links_carry_all_that_they_are_given_and_never_more_than_they_can(
    transfers: list[tuple[int, int, float, float, float]],
) -> None:
    queue = EventQueue()
    network = Network(queue)
    senders, receivers = [Link(100.0), Link(60.0), Link(30.0)], [Link(50.0), Link(100.0), Link(70.0)]
    sent: list[str] = []

    def look(_: object = None) -> None:
        for link in (*senders, *receivers):
            rate = sum(transfer.rate_bytes_per_s for transfer in link.transfers)
            assert rate <= link.bytes_per_s * (1 + 1e-9)

    for number, (sender, receiver, at_s, first, second) in enumerate(transfers):
        transfer = LinkTransfer(str(number), senders[sender], receivers[receiver], lambda t: sent.append(t.label))
        queue.at(at_s, lambda a: network.add(a[0], a[1], is_last=False), (transfer, first))
        queue.at(at_s + 1.0, lambda a: network.add(a[0], a[1], is_last=True), (transfer, second))
        for later_s in (0.0, 0.5, 1.0, 1.5, 3.0):
            queue.at(at_s + later_s, look)
    queue.run()
    assert sorted(sent) == sorted(str(number) for number in range(len(transfers)))
    for links, end in ((senders, 0), (receivers, 1)):
        for number, link in enumerate(links):
            given_bytes = sum(part for t in transfers if t[end] == number for part in t[3:])
            assert not link.transfers
            assert abs(link.carried_bytes - given_bytes) < 1e-3
