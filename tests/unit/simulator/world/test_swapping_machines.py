"""Machines that swap, run pipelines, or have no scheduler before them; small enough to be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.counted_blocks import CountedBlockPool
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.worker.policy import Batching, Reserve, Scheduling, WorkerPolicy
from spotwise.core.worker.role import WorkerRole
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from spotwise.simulator.costs.hardware import MachineType
from spotwise.simulator.world.client import SimulationError
from spotwise.simulator.world.observation import Arrival, WorldResult
from spotwise.simulator.world.settings import InterruptedPrompts
from spotwise.simulator.world.world import World
from tests.unit.simulator.world import worlds
from tests.unit.simulator.world.worlds import MODEL, Diary, machine_type, machines, serve, settings

#: Each iteration takes a second, whatever is in it.
SECOND = LinearIterationCost(1.0, 0.0, 0.0, 0.0, 0.0)


def with_host(kv_tokens: int, host_tokens: int, host_bytes_per_s: float = 1e9) -> MachineType:
    return replace(
        machine_type(kv_tokens, cost=SECOND),
        host_memory_bytes=host_tokens * MODEL.kv_token_bytes,
        host_bytes_per_s=host_bytes_per_s,
    )


def mlfq(when_full: WhenFull = WhenFull.REACTIVE, rows: int = 1, starve_limit_s: float = 1e6) -> WorkerPolicy:
    """One row: the latest arrival is in Q1 and runs, unless it has run already."""
    return WorkerPolicy(
        BatchLimits(max_num_seqs=rows),
        watermark=0.0,
        prefix_caching=False,
        scheduling=Scheduling.MLFQ,
        mlfq=MlfqPolicy(1.0, starve_limit_s=starve_limit_s),
        cost=SECOND,
        swap=SwapPolicy(when_full, spare_slots=0, burst_queues=0),
    )


def alone(kind: MachineType, policy: WorkerPolicy, arrivals: list[Arrival]) -> tuple[WorldResult, Diary]:
    return serve(machines(mixed=1, kind=kind), arrivals, settings(policy, max_new_tokens=1, through_scheduler=False))


class TestSwapping:
    """A long answer that holds all 8 blocks, and a short one that arrives in the middle of it."""

    LONG, SHORT = Arrival(0.0, 120, 4), Arrival(1.5, 120, 1)

    def test_kv_leaves_and_comes_back_at_the_links_pace(self) -> None:
        """8 blocks of 16,000 bytes take 0.5 s each way."""
        result, diary = alone(with_host(128, 128, 256_000.0), mlfq(), [self.LONG, self.SHORT])
        short, long = diary.completed
        # two iterations, 0.5 s out, the short one's, 0.5 s back, two iterations
        assert short.finished_s == pytest.approx(3.5)
        assert long.finished_s == pytest.approx(6.0)
        (machine,) = result.machines
        assert (machine.swapped_out_bytes, machine.swapped_in_bytes) == (128_000, 128_000)
        assert machine.preemptions == 0

    def test_a_full_host_leaves_it_to_be_computed_again(self) -> None:
        result, diary = alone(with_host(128, 64), mlfq(), [self.LONG, self.SHORT])
        (machine,) = result.machines
        assert (machine.swapped_out_bytes, machine.preemptions) == (0, 1)
        assert [served.finished_s for served in diary.completed] == pytest.approx([3.0, 5.0])
        assert [shape.prompt_tokens for _, shape, _, _ in diary.iterations] == [120, 0, 120, 122, 0]

    def test_deferring_lets_newcomers_wait(self) -> None:
        _, diary = alone(with_host(128, 128), mlfq(WhenFull.DEFER), [self.LONG, self.SHORT])
        assert [served.arrival for served in diary.completed] == [self.LONG, self.SHORT]

    def test_what_is_swapped_ahead_overlaps_with_what_runs(self) -> None:
        """A slot is kept free, so that a third request fits at once while the others' KV is copied beside the iterations."""
        arrivals = [Arrival(0.0, 60, 6), Arrival(1.5, 60, 6), Arrival(4.5, 60, 1)]
        ends = {}
        for when_full in (WhenFull.REACTIVE, WhenFull.PROACTIVE):
            policy = replace(mlfq(when_full), swap=SwapPolicy(when_full, spare_slots=1, burst_queues=0))
            # 5 blocks, 80,000 bytes, take 0.8 s: less than an iteration
            _, diary = alone(with_host(160, 1000, 100_000.0), policy, arrivals)
            ends[when_full] = next(served for served in diary.completed if served.arrival == arrivals[2]).e2e_s
        assert ends[WhenFull.PROACTIVE] == pytest.approx(1.5)  # half an iteration's wait, and its own
        assert ends[WhenFull.REACTIVE] > ends[WhenFull.PROACTIVE]

    def test_the_peak_counts_blocks_on_both_sides(self) -> None:
        result, _ = alone(with_host(128, 128), mlfq(), [self.LONG, self.SHORT])
        assert result.machines[0].peak_kv_tokens == 256

    def test_a_machine_without_host_memory_cannot_swap(self) -> None:
        with pytest.raises(ValueError, match="host's memory"):
            alone(with_host(128, 0), mlfq(), [self.LONG])

    def test_leaked_host_blocks_are_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        free = CountedBlockPool.free
        monkeypatch.setattr(CountedBlockPool, "free", lambda pool, id_: 0 if pool.num_blocks == 63 else free(pool, id_))
        with pytest.raises(SimulationError, match="KV blocks are held"):
            alone(with_host(128, 63 * 16), mlfq(), [self.LONG, self.SHORT])


class TestPipelines:
    """Two stages of half a second each."""

    POLICY = WorkerPolicy(BatchLimits(max_num_seqs=1), prefix_caching=False, max_in_flight=2)

    def test_two_batches_are_computed_in_turn(self) -> None:
        _, diary = alone(machine_type(cost=SECOND), self.POLICY, [Arrival(0.0, 10, 3), Arrival(0.0, 10, 3)])
        assert [served.finished_s for served in diary.completed] == pytest.approx([3.0, 3.5])

    def test_a_sequence_alone_is_no_faster(self) -> None:
        _, diary = alone(machine_type(cost=SECOND), self.POLICY, [Arrival(0.0, 10, 3)])
        assert diary.completed[0].finished_s == pytest.approx(3.0)
        assert [seconds for _, _, seconds, _ in diary.iterations] == pytest.approx([0.5, 0.5, 0.5])

    def test_a_batch_of_requests_leaves_the_other_stage_idle(self) -> None:
        """FasterTransformer's way: one batch at a time, for its whole length."""
        policy = replace(self.POLICY, max_in_flight=1, batching=Batching.REQUEST_LEVEL, reserve=Reserve.MAX_TOKENS)
        _, diary = alone(machine_type(cost=SECOND), policy, [Arrival(0.0, 10, 3), Arrival(0.0, 10, 3)])
        assert [served.finished_s for served in diary.completed] == pytest.approx([3.0, 6.0])


class TestOrdersOfSeveralIterations:
    """Orders of several iterations, for policies whose order does not change."""

    @pytest.mark.parametrize(
        ("policy", "steps"),
        [
            (WorkerPolicy(prefix_caching=False), 64),
            (mlfq(), None),
            (WorkerPolicy(prefix_caching=False, scheduling=Scheduling.SRPT), None),
            (WorkerPolicy(prefix_caching=False, max_in_flight=2), None),
        ],
    )
    def test_the_world_knows_which_policies_allow_them(self, policy: WorkerPolicy, steps: int | None) -> None:
        """The policy decides whether machines swap; the world needs no option for it."""
        assert settings().followed(policy).counted_steps == steps


class TestWithoutScheduler:
    """One machine has all requests as they come."""

    def test_whose_turn_it_is_is_the_workers_decision(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All arrive at once, with memory for one; the worker's policy picks the order."""
        most = 0
        handle = WorkerRole.handle

        def watched(role: WorkerRole, event: object, now: float) -> object:
            nonlocal most
            answer = handle(role, event, now)  # type: ignore[arg-type]
            most = max(most, role.load().waiting)
            return answer

        monkeypatch.setattr(WorkerRole, "handle", watched)
        arrivals = [Arrival(0.0, 100, 20) for _ in range(10)]
        alone(machine_type(kv_tokens=128, cost=SECOND), WorkerPolicy(prefix_caching=False), arrivals)
        assert most >= 9

    def test_what_could_never_fit_is_refused(self) -> None:
        _, diary = alone(machine_type(kv_tokens=64), WorkerPolicy(prefix_caching=False), [Arrival(0.0, 200, 20)])
        ((_, reason),) = diary.failed
        assert reason.startswith("never_fits")

    def test_two_machines_need_a_scheduler(self) -> None:
        with pytest.raises(ValueError, match="one machine"):
            serve(machines(mixed=2), [Arrival(0.0, 10, 1)], settings(through_scheduler=False))


def test_an_oracle_serves_the_shortest_first() -> None:
    """The remaining tokens are known from the record, whatever `max_tokens` is."""
    policy = WorkerPolicy(BatchLimits(max_num_seqs=1), prefix_caching=False, scheduling=Scheduling.SRPT)
    arrivals = [Arrival(0.0, 10, 40), Arrival(0.5, 10, 20), Arrival(0.6, 10, 2)]
    _, diary = alone(machine_type(cost=SECOND), policy, arrivals)
    assert [served.arrival for served in diary.completed] == [arrivals[2], arrivals[1], arrivals[0]]


#: 1 s an iteration, 0.25 s a token of it; quanta 2, 4, 8 and 16 s.
INTERRUPTED_COST = LinearIterationCost(1.0, 0.25, 0.0, 0.0, 0.0)
QUEUES = MlfqPolicy(2.0, queues=4, starve_limit_s=1000.0)


@pytest.mark.parametrize(
    ("queues", "tokens", "lost"),
    [
        (QUEUES, 4, ()),
        (QUEUES, 8, (4,)),
        (QUEUES, 20, (4, 12)),
        (QUEUES, 10_000, (4, 12, 28)),
        (MlfqPolicy(1.0, queues=3), 6, (4,)),
    ],
    ids=["fits", "one quantum", "two quanta", "the last queue interrupts none", "a quantum without room"],
)
def test_a_prompt_loses_what_each_quantum_has_room_for(queues: MlfqPolicy, tokens: int, lost: tuple[int, ...]) -> None:
    """8 tokens take 3 s and 20 tokens 6 s; in Q3, whose quantum is 8 s, the latter are computed whole."""
    assert InterruptedPrompts(INTERRUPTED_COST, queues).lost_parts(tokens) == lost


def test_a_client_waits_for_the_lost_parts_and_then_for_its_answer() -> None:
    """The answer begins once all lost parts have been computed: 2 s, 4 s, and then 6 s."""
    interrupted = InterruptedPrompts(INTERRUPTED_COST, QUEUES)
    policy = WorkerPolicy(prefix_caching=False, scheduling=Scheduling.MLFQ, mlfq=QUEUES, cost=INTERRUPTED_COST)
    alone = settings(policy, interrupted=interrupted, through_scheduler=False)
    result, diary = serve(machines(mixed=1, kind=machine_type(cost=INTERRUPTED_COST)), [Arrival(5.0, 20, 2)], alone)
    (served,) = diary.completed
    assert (result.completed, result.failed) == (1, 0)
    assert (served.arrival, served.ttft_s, served.e2e_s) == (Arrival(5.0, 20, 2), 12.0, 13.0)
    assert [shape.prompt_tokens for _, shape, _, _ in diary.iterations] == [4, 12, 20, 0]


#: Time, prompt and output tokens: the last prompt is deferred behind a refused reservation, until nothing else is left.
SIZES = [
    (0.0, 70, 23),
    (0.0, 63, 11),
    (0.0, 88, 18),
    (0.0, 56, 23),
    (0.007, 113, 27),
    (0.048, 81, 4),
    (0.077, 146, 13),
]


def test_a_deferred_prompt_is_computed_once_the_promise_is_over() -> None:
    """Nothing else happens on its machine by then: only the time does."""
    policy = WorkerPolicy(
        BatchLimits(max_num_seqs=8, max_num_batched_tokens=24),
        prefix_caching=False,
        max_preemptions=1,
        max_in_flight=2,
        scheduling=Scheduling.MLFQ,
        mlfq=MlfqPolicy(0.01, queues=4, starve_limit_s=5.0),
        cost=worlds.COST,
        swap=SwapPolicy(WhenFull.DEFER, 0, 2),
    )
    small = worlds.machine_type(kv_tokens=256, link_bytes_per_s=1e6)
    kind = replace(small, host_memory_bytes=256 * worlds.MODEL.kv_token_bytes, host_bytes_per_s=1e7)
    world = World(worlds.machines(1, 2, 2, kind=kind), worlds.settings(policy, max_new_tokens=40), worlds.Diary())
    result = world.run([Arrival(*size) for size in SIZES])
    assert result.completed == len(SIZES)
