"""Tests of counted iterations: orders of several iterations for engines that sample tokens without ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.sequences.held_work import WorkInFlight
from tests.unit.core.builders import ledger, only
from tests.unit.core.worker.bench import WorkerBench, deltas, rows


def bench_of(blocks: int = 100, counted_steps: int = 1000, **policy: object) -> WorkerBench:
    chosen = WorkerPolicy(watermark=0.0, prefix_caching=False, counted_steps=counted_steps, **policy)  # type: ignore[arg-type]
    return WorkerBench(blocks=blocks, policy=chosen)


def counted(bench: WorkerBench, steps: int = 1, *, ended: bool = True) -> list[c.WorkerCommand]:
    return bench.feed(c.IterationsCounted(steps, ended))


def steps(commands: list[c.WorkerCommand]) -> int:
    """Return the number of iterations in the only order."""
    (order,) = only(commands, c.RunIteration)
    return order.steps


@pytest.fixture
def bench() -> WorkerBench:
    return bench_of()


def test_a_sequence_alone_is_ordered_up_to_its_end(bench: WorkerBench) -> None:
    """The first token comes by itself, since a client waits for it, and the rest is one order."""
    assert steps(bench.in_place("a", max_new=50)) == 1
    commands = counted(bench)
    assert [(d.token_index, d.token_id, d.finish_reason) for d in deltas(commands)] == [(0, None, None)]
    assert steps(commands) == 49
    commands = counted(bench, 49)
    assert [(d.token_index, d.token_id, d.finish_reason) for d in deltas(commands)] == [(50, None, FinishReason.LENGTH)]
    assert ledger(commands, "decoded")[0]["tokens"] == 49
    assert bench.role.iterations == 50
    bench.assert_empty()


def test_one_token_that_is_the_first_and_the_last_is_sent_once(bench: WorkerBench) -> None:
    """A stream has one delta a message."""
    bench.in_place("a", max_new=1)
    (delta,) = deltas(counted(bench))
    assert (delta.token_index, delta.finish_reason, delta.cached_tokens) == (1, FinishReason.LENGTH, 0)


def test_a_hand_off_is_the_same(bench: WorkerBench) -> None:
    """A hand-off's first token also has no id."""
    bench.prefill("p")
    (push,) = only(counted(bench), c.PushKv)
    assert (push.handoff.num_tokens, push.handoff.first_token_id) == (30, 0)


def test_the_first_to_end_ends_the_order(bench: WorkerBench) -> None:
    """The others continue in a new order."""
    bench.decode("a", max_new=20)
    bench.decode("b", max_new=8)
    counted(bench)
    assert steps(counted(bench)) == 6
    commands = counted(bench, 6)
    assert [d.token_index for d in deltas(commands)] == [8]
    assert (rows(commands), steps(commands)) == (["a@1"], 11)


def test_an_order_is_no_longer_than_the_policy_allows() -> None:
    """An order has at most `counted_steps` iterations, however many tokens a sequence has left."""
    for counted_steps in (5, 1):
        bench = bench_of(counted_steps=counted_steps)
        bench.in_place("a", max_new=50)
        assert steps(counted(bench)) == counted_steps


def test_what_was_counted_in_mid_order_counts(bench: WorkerBench) -> None:
    """Tokens and blocks are those of single iterations; nothing else is ordered."""
    bench.in_place("a", prompt=30, max_new=50)
    counted(bench)
    assert bench.pool.used_blocks == 2
    assert counted(bench, 1, ended=False) == []
    assert bench.pool.used_blocks == 2
    assert counted(bench, 1, ended=False) == []
    assert bench.pool.used_blocks == 3  # for the 33rd token, which is being computed
    assert bench.role.load().remaining_tokens == 47
    assert bench.role.iterations == 3


def test_blocks_bound_an_order() -> None:
    """The order ends before the iteration that would preempt a sequence."""
    bench = bench_of(blocks=5)
    bench.decode("a", max_new=40)
    bench.decode("b", max_new=40)
    assert steps(counted(bench)) == 1  # a has 32 tokens, b has its first now
    assert steps(counted(bench)) == 1  # the one block left is a's
    commands = counted(bench)
    assert rows(commands) == ["a@1"]
    assert ledger(commands, "preempted") == []


def test_an_order_runs_on_over_what_changes_nothing(bench: WorkerBench) -> None:
    """Ticks, leases, and reservations that leave it enough blocks."""
    bench.in_place("a", max_new=200)
    counted(bench)
    assert bench.tick() == []
    assert bench.feed(m.RenewLeases((("a", 1),))) == []
    assert only(bench.reserve("r"), c.EndRun) == []


def test_a_sequence_that_can_join_ends_the_order_at_the_next_boundary(bench: WorkerBench) -> None:
    """Once: the order is over with the iteration that runs."""
    bench.in_place("a", max_new=200)
    counted(bench)
    counted(bench, 10, ended=False)
    assert only(bench.prefill("p"), c.EndRun) == [c.EndRun()]
    assert only(bench.prefill("q"), c.EndRun) == []
    assert rows(counted(bench, 1)) == ["a@1", "p@1", "q@1"]


def test_a_sequence_that_leaves_ends_the_order_at_the_next_boundary(bench: WorkerBench) -> None:
    """A leaving sequence's blocks are used until the boundary."""
    bench.in_place("a", max_new=200)
    counted(bench)
    assert bench.feed(m.CancelRequest("a", 1)) == [c.EndRun()]
    assert counted(bench) == [c.DropSequence("a@1")]
    bench.assert_empty()


def test_a_reservation_that_takes_the_blocks_of_a_run_ends_it() -> None:
    """The running sequences need those blocks later, and one of them is to be preempted then."""
    bench = bench_of(blocks=20)
    bench.in_place("a", max_new=200)
    assert steps(counted(bench)) == 199
    assert only(bench.reserve("r", tokens=200, new=100), c.EndRun) == [c.EndRun()]
    assert steps(counted(bench)) == 16 * (20 - 7) - 31


def test_any_change_while_a_sequence_waits_ends_the_order() -> None:
    """Here the blocks come free that a prompt waits for."""
    bench = bench_of(blocks=8, prompts_first=False)
    bench.in_place("a", prompt=30, max_new=50)
    counted(bench)
    bench.reserve("r", tokens=50, new=10)
    bench.prefill("p", prompt=60)
    commands = counted(bench)
    assert (rows(commands), steps(commands) > 1) == (["a@1"], True)
    assert only(bench.feed(m.CancelRequest("r", 1)), c.EndRun) == [c.EndRun()]
    assert rows(counted(bench)) == ["a@1", "p@1"]


def test_while_a_prompt_may_preempt_iterations_are_single() -> None:
    """The time for it is only known at boundaries."""
    bench = bench_of(blocks=4)
    bench.in_place("a", prompt=30, max_new=30)
    bench.prefill("p", prompt=60)
    assert steps(counted(bench)) == 1


def test_an_engine_may_end_an_order_by_itself(bench: WorkerBench) -> None:
    """The engine's result contains how many iterations it ran."""
    bench.in_place("a", max_new=50)
    counted(bench)
    assert steps(counted(bench, 9)) == 40


def test_an_engine_failure_ends_the_run(bench: WorkerBench) -> None:
    """The sequence runs again by single iterations, and holds nothing once it is given back."""
    bench.in_place("a", max_new=50)
    counted(bench)
    assert steps(bench.feed(c.IterationFailed("broken"))) == 1
    bench.feed(c.IterationFailed("broken"))
    bench.assert_empty()
    assert steps(bench.in_place("b", max_new=50)) == 1


def test_with_all_blocks_reserved_an_order_needs_no_more() -> None:
    bench = WorkerBench(blocks=20, policy=WorkerPolicy(reserve=Reserve.MAX_TOKENS, counted_steps=1000))
    bench.in_place("a", max_new=50)
    assert steps(counted(bench)) == 49


def test_a_role_goes_on_with_work_that_it_takes_over() -> None:
    """In the midst of an order: what runs is one iteration of it, and the rest is ordered next."""
    bench, successor = bench_of(), bench_of()
    bench.in_place("a", max_new=50)
    bench.in_place("b", max_new=5)
    (order,) = only(counted(bench), c.RunIteration)
    work = bench.role.held_work()
    members = [(sequence, row.num_tokens) for (sequence, _), row in zip(work.sequences, order.batch.rows, strict=False)]
    in_flight = WorkInFlight(members, order.batch, bench.now, is_noted=True)
    successor.role.take_over(replace(work, in_flight=in_flight, loading=["c@1"]))
    assert replace(successor.role.load(), gateways=()) == replace(bench.role.load(), gateways=())
    (following,) = only(counted(successor), c.RunIteration)
    assert [row.first_position for row in following.batch.rows] == [
        row.first_position + row.num_tokens for row in order.batch.rows
    ]
