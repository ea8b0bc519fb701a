"""Blocks where the scheduling order changes: which sequence gives its own up, when, and which way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.unit.core.builders import ledger, one, only, sent
from tests.unit.core.worker.bench import HERE, WorkerBench, rows

#: A decode takes 1 s, a prompt token a tenth more; quanta are 1, 2, 4, 8 s.
POLICY = WorkerPolicy(
    watermark=0.0,
    prefix_caching=False,
    scheduling=Scheduling.MLFQ,
    mlfq=MlfqPolicy(first_quantum_s=1.0, queues=4, starve_limit_s=1000.0),
    cost=LinearIterationCost(1.0, 0.1, 0.0, 0.0, 0.0),
    swap=SwapPolicy(WhenFull.REACTIVE),
)


def policy_of(when_full: WhenFull, *, slots: int = 0, burst_queues: int = 0, seqs: int = 8) -> WorkerPolicy:
    return replace(POLICY, limits=BatchLimits(seqs), swap=SwapPolicy(when_full, slots, burst_queues))


def two_long_ones(
    policy: WorkerPolicy, max_new: int = 30, tenant: str = "", blocks: int = 4, **options: Any
) -> WorkerBench:
    """Sequences a and b decode, in the lowest queue, with two blocks of 16 each; b came there later."""
    bench = WorkerBench(blocks=blocks, policy=policy, **options)
    bench.in_place("a", prompt=20, max_new=max_new, tenant=tenant)
    bench.iterate(a=51)
    bench.in_place("b", prompt=20, max_new=max_new, tenant=tenant)
    bench.iterate(a=52)
    bench.iterate(a=52, b=51)
    return bench


@pytest.fixture
def two() -> WorkerBench:
    return two_long_ones(policy_of(WhenFull.REACTIVE))


def moved(commands: list[c.WorkerCommand]) -> list[str]:
    """The sequences ordered to swap out, in order."""
    return [move.sequence_id for move in only(commands, c.SwapOut)]


class TestReactive:
    """KV goes when its place is needed."""

    def test_a_newcomer_makes_the_last_in_order_give_its_blocks_up(self, two: WorkerBench) -> None:
        """The newcomer is computed once the last sequence is swapped out; meanwhile the others continue."""
        commands = two.in_place("n", prompt=5)
        assert moved(commands) == []  # the iteration in flight reads them
        commands = two.iterate(a=53, b=52)
        assert (moved(commands), rows(commands)) == (["b@1"], ["a@1"])
        (move,) = only(commands, c.SwapOut)
        assert len(move.block_ids) == len(move.host_block_ids) == 2
        assert two.pool.free_blocks == 0
        two.swapped("b")
        assert rows(two.iterate(a=54)) == ["n@1", "a@1"]

    def test_it_comes_back_when_there_is_room_and_it_has_its_turn(self, two: WorkerBench) -> None:
        """A swapped-out sequence returns when blocks are free and it has its turn, and resumes at its position."""
        two.in_place("n", prompt=5)
        two.iterate(a=53, b=52)
        two.swapped("b")
        two.iterate(a=54)
        commands = two.iterate(n=2, a=55)  # n ends
        assert [move.sequence_id for move in only(commands, c.SwapIn)] == ["b@1"]
        commands = two.swapped("b")
        commands = two.iterate(a=56)
        assert rows(commands) == ["a@1", "b@1"]
        ((_, first, tokens, _),) = [row for order in only(commands, c.RunIteration) for row in order.batch.rows][1:]
        assert (first, tokens) == (21, 1)

    def test_where_all_behind_it_are_not_enough_no_sequence_gives_up_blocks(self, two: WorkerBench) -> None:
        """No sequence is swapped out for a newcomer that would not fit even then, and later newcomers do not pass it."""
        two.in_place("n", prompt=60)  # four blocks, of the lowest queue
        two.start("o", prompt=60, target=HERE)
        commands = two.iterate(a=53, b=52)
        assert (moved(commands), rows(commands)) == ([], ["a@1", "b@1"])

    def test_where_the_host_is_full_it_is_computed_again(self) -> None:
        """The preempted sequence's blocks become free at once, since nothing is copied."""
        bench = two_long_ones(policy_of(WhenFull.REACTIVE), host_blocks=1)
        bench.in_place("n", prompt=5)
        commands = bench.iterate(a=53, b=52)
        assert (moved(commands), rows(commands)) == ([], ["n@1", "a@1"])
        assert ledger(commands, "preempted") == [{"computed_tokens": 21, "preemptions": 1}]

    def test_a_sequence_recomputed_often_enough_stays(self) -> None:
        """Without swapping a sequence is recomputed a bounded number of times, then the newcomer waits."""
        bench = two_long_ones(replace(policy_of(WhenFull.RECOMPUTE), max_preemptions=1), max_new=12)
        bench.in_place("n", prompt=5)
        assert ledger(bench.iterate(a=53, b=52), "preempted")
        assert rows(bench.iterate(n=2, a=54)) == ["a@1", "b@1"]
        bench.in_place("o", prompt=5)
        assert rows(bench.iterate(a=55, b=53)) == ["o@1", "b@1"]  # it was a's turn to lose its own
        bench.in_place("p", prompt=5)
        commands = bench.iterate(o=51, b=54)
        assert (rows(commands), ledger(commands, "preempted")) == (["o@1", "p@1", "b@1"], [])

    def test_a_sequence_that_has_not_run_since_it_came_keeps_its_blocks(self) -> None:
        """Else one that comes back and one that goes would change places for ever."""
        bench = WorkerBench(blocks=2, policy=policy_of(WhenFull.REACTIVE, seqs=1))
        bench.in_place("a", prompt=20)
        bench.iterate(a=51)
        bench.in_place("n", prompt=5)
        bench.iterate(a=52)
        commands = bench.swapped("a")
        assert rows(commands) == ["n@1"]
        bench.in_place("o", prompt=4)
        commands = bench.iterate(n=2)
        assert rows(commands) == ["o@1"]


class TestDefer:
    """The policy under which newcomers wait."""

    def test_no_sequence_gives_blocks_up_to_a_newcomer(self) -> None:
        """Under `WhenFull.DEFER` a newcomer waits although it ranks before the running sequences."""
        bench = two_long_ones(policy_of(WhenFull.DEFER))
        bench.in_place("n", prompt=5)
        commands = bench.iterate(a=53, b=52)
        assert (moved(commands), ledger(commands, "preempted"), rows(commands)) == ([], [], ["a@1", "b@1"])
        commands = bench.iterate(a=2, b=53)
        assert rows(commands) == ["n@1", "b@1"]

    def test_a_growing_sequence_still_takes_them(self) -> None:
        """A growing sequence takes blocks from those ranked below it, else none would progress."""
        bench = two_long_ones(policy_of(WhenFull.DEFER))
        for token in range(53, 62):  # then a has all 32 tokens of its blocks
            assert ledger(bench.iterate(a=token, b=token), "preempted") == []
        commands = bench.iterate(a=62, b=62)
        assert ledger(commands, "preempted") == [{"computed_tokens": 30, "preemptions": 1}]
        assert rows(commands) == ["a@1"]


class TestProactive:
    """KV goes before its place is needed."""

    def test_slots_are_kept_free_by_those_that_do_not_run(self) -> None:
        """K slots stay free, each as large as newcomers were."""
        bench = WorkerBench(blocks=6, policy=policy_of(WhenFull.PROACTIVE, slots=2, seqs=1))
        bench.in_place("a", prompt=20)
        bench.iterate(a=51)
        commands = bench.in_place("b", prompt=20)
        assert moved(commands) == []
        commands = bench.iterate(a=52)  # b's turn: it came to the queue before a came to the next one
        assert (rows(commands), bench.pool.free_blocks) == (["b@1"], 2)
        assert moved(commands) == ["a@1"]

    def test_without_slots_to_keep_nothing_goes(self) -> None:
        """K = 0 is reactive but for what comes back."""
        bench = WorkerBench(blocks=6, policy=policy_of(WhenFull.PROACTIVE, slots=0, seqs=1))
        bench.in_place("a", prompt=20)
        bench.iterate(a=51)
        bench.in_place("b", prompt=20)
        assert moved(bench.iterate(a=52)) == []

    def test_a_burst_keeps_more(self) -> None:
        """Jobs in the K' uppermost queues are taken for as many newcomers."""

        def swapped_out(burst_queues: int) -> list[str]:
            bench = WorkerBench(
                blocks=6, policy=policy_of(WhenFull.PROACTIVE, slots=0, burst_queues=burst_queues, seqs=1)
            )
            bench.in_place("a", prompt=20)
            bench.iterate(a=51)
            bench.in_place("b", prompt=5)
            bench.in_place("c", prompt=5)
            bench.in_place("d", prompt=5)
            return moved(bench.iterate(a=52))

        assert swapped_out(0) == []
        assert swapped_out(2) == ["a@1"]  # three in Q2, of some two blocks each, and five are free

    def test_the_last_to_run_goes_first(self) -> None:
        """Largest ENST first: of two that do not run, the one in the lower queue."""
        bench = WorkerBench(blocks=6, policy=policy_of(WhenFull.PROACTIVE, slots=1, seqs=1))
        bench.in_place("low", prompt=30)  # 4 s, all of Q3's quantum
        bench.iterate(low=51)
        bench.in_place("middle", prompt=20)  # 3 s of Q3's 4
        bench.iterate(low=52)
        bench.in_place("high", prompt=8)
        commands = bench.iterate(middle=51)
        assert (rows(commands), moved(commands)) == (["high@1"], ["low@1"])

    def test_what_is_to_run_soon_comes_back_before_its_turn(self) -> None:
        """A swapped-out sequence comes back early where there is more memory than newcomers need."""
        bench = WorkerBench(blocks=6, policy=policy_of(WhenFull.PROACTIVE, slots=2, seqs=1))
        bench.in_place("a", prompt=20)
        bench.iterate(a=51)
        bench.in_place("b", prompt=20)
        assert moved(bench.iterate(a=52)) == ["a@1"]
        bench.swapped("a")
        commands = bench.iterate(b=2)  # b ends: a's turn
        assert [move.sequence_id for move in only(commands, c.SwapIn)] == ["a@1"]


class TestReservations:
    """Reservations for sequences whose prompts are computed on another worker."""

    def test_a_refusal_makes_room_for_the_next_time(self) -> None:
        """After a refusal idle sequences are swapped out, and for a second the memory is kept for the newcomer."""
        bench = two_long_ones(policy_of(WhenFull.REACTIVE, seqs=1))
        bench.iterate(a=53)
        assert one(sent(bench.reserve("n", tokens=20, new=4), "s"), m.KvRefused)
        commands = bench.tick()
        name = moved(commands) or moved(bench.iterate(a=54)) or moved(bench.iterate(b=52))
        assert name
        bench.swapped(name[0].split("@")[0])
        assert one(sent(bench.reserve("n", 2, tokens=20, new=4), "s"), m.KvReserved)

    def test_those_that_run_make_room_too_where_they_let_newcomers_pass(self, two: WorkerBench) -> None:
        """In a batch wide enough for all, no sequence is idle, so the last of the order is swapped out."""
        assert one(sent(two.reserve("n", tokens=20, new=4), "s"), m.KvRefused)
        commands = two.iterate(a=53, b=52)
        assert (moved(commands), rows(commands)) == (["b@1"], ["a@1"])
        two.swapped("b")
        assert rows(two.iterate(a=54)) == ["a@1"]  # b stays away: the memory is promised
        assert one(sent(two.reserve("n", 2, tokens=20, new=4), "s"), m.KvReserved)

    def test_a_promise_is_kept_for_a_second(self, two: WorkerBench) -> None:
        """After a second the promise ends, and the swapped-out sequence comes back."""
        two.reserve("n", tokens=20, new=4)
        two.iterate(a=53, b=52)
        two.swapped("b")
        assert only(two.iterate(after_s=0.9, a=54), c.SwapIn) == []
        assert [move.sequence_id for move in only(two.iterate(after_s=0.2, a=55), c.SwapIn)] == ["b@1"]

    @pytest.mark.parametrize(("tenant", "leaving"), [("y", []), ("x", ["b@1"]), ("z", ["b@1"])])
    def test_a_tenant_that_was_served_less_gives_nothing_up(self, tenant: str, leaving: list[str]) -> None:
        """x was served less than y, for whose newcomers it would otherwise leave one after another, until it starves. The
        queues decide for its own newcomer, and for one of a tenant that was served nothing yet.
        """
        bench = two_long_ones(policy_of(WhenFull.REACTIVE), tenant="x", blocks=6)
        bench.in_place("y", prompt=30, max_new=1, tenant="y")
        assert "y@1" in rows(bench.iterate(a=53, b=52))
        bench.iterate(y=51, a=54, b=53)
        assert one(sent(bench.reserve("n", tokens=44, new=4, tenant=tenant), "s"), m.KvRefused)
        assert moved(bench.iterate(a=55, b=54)) == leaving

    @pytest.mark.parametrize(("tenant", "answer"), [("y", m.KvRefused), ("x", m.KvReserved)])
    def test_what_comes_free_is_kept_for_a_tenant_that_was_served_less(self, tenant: str, answer: type) -> None:
        """Blocks come free while an iteration runs; a, of x, lacks one, and y was served more."""
        limits = BatchLimits(8, max_num_batched_tokens=16)
        bench = WorkerBench(blocks=7, policy=replace(policy_of(WhenFull.REACTIVE), limits=limits))
        bench.in_place("a", prompt=31, max_new=12, tenant="x")
        bench.iterate()
        bench.reserve("h", tokens=30, new=2, tenant="y")
        bench.start("p", prompt=48)
        bench.load("p", tenant="y")
        bench.iterate(a=51)
        assert (rows(bench.iterate(a=51)), bench.pool.free_blocks) == (["p@1"], 0)
        bench.tick(after_s=100.0)  # the reservation expires
        assert bench.pool.free_blocks == 2
        assert one(sent(bench.reserve("n", tokens=30, new=2, tenant=tenant), "s"), answer)

    @pytest.mark.parametrize(("priority", "leaving"), [(1, []), (0, ["b@1"]), (-1, ["b@1"])])
    def test_a_priority_is_strict(self, priority: int, leaving: list[str], two: WorkerBench) -> None:
        """No sequence leaves for a newcomer with a higher number than its own."""
        two.reserve("n", tokens=20, new=4, priority=priority, tenant="x")
        assert moved(two.iterate(a=53, b=52)) == leaving

    @pytest.mark.parametrize(("when_full", "blocks"), [(WhenFull.REACTIVE, 5), (WhenFull.DEFER, 1)])
    def test_what_could_move_counts_as_free_for_newcomers(self, when_full: WhenFull, blocks: int) -> None:
        """The scheduler sees the memory of sequences that could be swapped out as free, of running ones as well."""
        bench = two_long_ones(policy_of(when_full, seqs=1), blocks=5)
        assert bench.role.load().kv_blocks_free == blocks


def test_a_policy_that_swaps_needs_blocks_of_the_host() -> None:
    with pytest.raises(ValueError, match="host"):
        type(WorkerBench().role)("w", 1, "w:2", WorkerBench().pool, POLICY)
