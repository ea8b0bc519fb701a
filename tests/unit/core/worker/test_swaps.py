"""KV on its way to the host and back: what is copied, what comes free when, and what a broken-off move leaves."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.costs.cost_model import LinearIterationCost
from spotwise.core.kv.swap import SwapPolicy, WhenFull
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Scheduling, WorkerPolicy
from spotwise.core.worker.scheduling.mlfq import MlfqPolicy
from tests.unit.core.builders import ledger, only
from tests.unit.core.worker.bench import HERE, WorkerBench, deltas, row_of, rows

POLICY = WorkerPolicy(
    BatchLimits(max_num_seqs=1),
    watermark=0.0,
    prefix_caching=False,
    scheduling=Scheduling.MLFQ,
    mlfq=MlfqPolicy(first_quantum_s=1.0, queues=4, starve_limit_s=1000.0),
    cost=LinearIterationCost(1.0, 0.1, 0.0, 0.0, 0.0),
    swap=SwapPolicy(WhenFull.REACTIVE),
)
SHARING = replace(POLICY, prefix_caching=True)


def one_leaves(policy: WorkerPolicy = POLICY) -> tuple[WorkerBench, list[c.WorkerCommand]]:
    """Return a bench on which sequence `a` (39 computed tokens, three blocks) is swapped out for newcomer `n`."""
    bench = WorkerBench(blocks=3, policy=policy)
    bench.in_place("a", prompt=38)
    bench.iterate(a=51)
    bench.in_place("n", prompt=8)
    return bench, bench.iterate(a=52)


class TestLeaving:
    """Copies to the host."""

    def test_what_is_computed_is_copied_and_nothing_else(self) -> None:
        """The sequence's first computed blocks are copied into as many host blocks."""
        _, commands = one_leaves()
        (move,) = only(commands, c.SwapOut)
        assert (move.block_ids, move.host_block_ids) == ((0, 1, 2), (0, 1, 2))
        assert ledger(commands, "swapped_out") == [{"blocks": 3, "known_blocks": 0}]

    def test_its_blocks_come_free_when_it_has_left(self) -> None:
        """A swapped-out sequence's blocks become free once the copy has ended, since the copy reads them."""
        bench, commands = one_leaves()
        assert (bench.pool.free_blocks, rows(commands)) == (0, [])
        assert rows(bench.swapped("a")) == ["n@1"]
        assert (bench.pool.free_blocks, bench.host.free_blocks) == (2, 17)

    def test_one_that_is_cancelled_meanwhile_leaves_when_the_copy_has_ended(self) -> None:
        bench, _ = one_leaves()
        assert only(bench.feed(m.CancelRequest("a", 1)), c.DropSequence) == []
        commands = bench.swapped("a")
        assert only(commands, c.DropSequence) == [c.DropSequence("a@1")]
        assert rows(commands) == ["n@1"]
        bench.iterate(n=2)
        bench.assert_empty()

    def test_a_failed_copy_leaves_it_where_it_was(self) -> None:
        """The sequence is not swapped out again, but recomputed if its blocks are needed."""
        bench, _ = one_leaves()
        commands = bench.feed(c.SwapFailed("a@1", "no memory"))
        assert ledger(commands, "swap_failed") == [{"reason": "no memory"}]
        assert (only(commands, c.SwapOut), bench.host.free_blocks) == ([], 20)
        assert ledger(commands, "preempted") == [{"computed_tokens": 39, "preemptions": 1}]
        assert rows(commands) == ["n@1"]

    def test_what_the_host_has_already_is_not_copied_again(self) -> None:
        """Full blocks with the same tokens are shared there."""
        bench, _ = one_leaves(SHARING)
        bench.swapped("a")
        assert len(only(bench.iterate(n=2), c.SwapIn)) == 1  # n ends, a comes back
        bench.swapped("a")
        bench.in_place("o", prompt=8)
        commands = bench.iterate(a=53)
        (move,) = only(commands, c.SwapOut)
        assert (move.block_ids, ledger(commands, "swapped_out")) == ((2,), [{"blocks": 1, "known_blocks": 2}])


class TestReturning:
    """Copies to the device."""

    def test_it_resumes_where_it_was(self) -> None:
        """A swapped-in sequence resumes at its last position without recomputation, and its host blocks become free."""
        bench, _ = one_leaves()
        bench.swapped("a")
        commands = bench.iterate(n=2)
        assert ledger(commands, "swapped_in") == [{"blocks": 3, "known_blocks": 0}]
        assert rows(commands) == []
        assert row_of(bench.swapped("a"), "a") == (39, 1)
        assert bench.host.free_blocks == 20

    def test_what_the_device_still_has_is_not_copied(self) -> None:
        """Cached blocks that were not reused meanwhile are not copied in."""
        bench, _ = one_leaves(SHARING)
        bench.swapped("a")
        (move,) = only(bench.iterate(n=2), c.SwapIn)
        assert len(move.block_ids) < 3

    def test_what_came_back_is_found_by_others(self) -> None:
        """Also the full block that another sequence had used meanwhile."""
        bench = WorkerBench(blocks=3, policy=SHARING)
        bench.in_place("a", prompt=38)
        bench.iterate(a=51)
        bench.in_place("n", prompt=30)
        bench.iterate(a=52)
        bench.swapped("a")
        (sequence, _) = bench.role.sequences
        assert len(bench.pool.find(sequence.block_hashes)) == 1
        bench.iterate(n=2)
        bench.swapped("a")
        assert bench.pool.find(sequence.block_hashes) == sequence.block_ids[:2]

    def test_a_failed_copy_is_computed_again(self) -> None:
        """A sequence whose swap-in fails is recomputed from its tokens."""
        bench, _ = one_leaves()
        bench.swapped("a")
        bench.iterate(n=2)
        commands = bench.feed(c.SwapFailed("a@1", "a bad page"))
        assert row_of(commands, "a") == (0, 40)
        assert bench.host.free_blocks == 20

    def test_one_that_is_cancelled_meanwhile_leaves_when_the_copy_has_ended(self) -> None:
        bench, _ = one_leaves()
        bench.swapped("a")
        bench.iterate(n=2)
        bench.feed(m.CancelRequest("a", 1))
        assert bench.pool.free_blocks == 0
        bench.swapped("a")
        bench.assert_empty()

    def test_one_that_is_cancelled_on_the_host_leaves_at_once(self) -> None:
        bench, _ = one_leaves()
        bench.swapped("a")
        bench.feed(m.CancelRequest("a", 1))
        bench.iterate(n=2)
        bench.assert_empty()


class TestFetching:
    """Beginnings of prompts that are on the host alone."""

    def prompt_is_on_the_host(self) -> WorkerBench:
        """Sequence a is on the host, with the two full blocks of its prompt; the device has but the first of them left."""
        bench, _ = one_leaves(SHARING)
        bench.swapped("a")
        bench.in_place("o", prompt=30)
        bench.iterate(n=2)
        return bench

    def submit_the_same(self, bench: WorkerBench, salt: str = "") -> list[c.WorkerCommand]:
        """A newcomer p has the prompt of a, and more: it comes last but for a."""
        bench.start("p", prompt=41, new=2, target=HERE)
        return bench.load("p", prompt=(*(ord("a") + 128 * position for position in range(40)), 7), max_new=2, salt=salt)

    def test_they_are_copied_before_the_rest_is_computed(self) -> None:
        """The client gets that number of cached tokens."""
        bench = self.prompt_is_on_the_host()
        self.submit_the_same(bench)
        bench.feed(m.CancelRequest("a", 1))
        commands = bench.iterate(o=2)
        (move,) = only(commands, c.SwapIn)
        assert (move.sequence_id, len(move.block_ids), rows(commands)) == ("p@1", 1, [])
        assert ledger(commands, "prefix_fetched") == [{"blocks": 1, "known_blocks": 1}]
        commands = bench.swapped("p")
        assert row_of(commands, "p") == (32, 9)
        (delta,) = deltas(bench.iterate(p=51))
        assert delta.cached_tokens == 32
        bench.iterate(p=52)
        bench.assert_empty()

    def test_another_tenant_fetches_nothing(self) -> None:
        """Its prompt is computed whole: neither the blocks on the host nor those on the device are its own."""
        bench = self.prompt_is_on_the_host()
        self.submit_the_same(bench, salt="another")
        bench.feed(m.CancelRequest("a", 1))
        commands = bench.iterate(o=2)
        assert only(commands, c.SwapIn) == []
        assert row_of(commands, "p") == (0, 41)

    def test_where_that_fails_they_are_computed(self) -> None:
        """Where the copy of a prefix fails, the prefix is recomputed except for the blocks on the device."""
        bench = self.prompt_is_on_the_host()
        self.submit_the_same(bench)
        bench.feed(m.CancelRequest("a", 1))
        bench.iterate(o=2)
        assert row_of(bench.feed(c.SwapFailed("p@1", "a bad page")), "p") == (16, 25)
        bench.iterate(p=2)
        bench.assert_empty()

    def test_they_count_as_cached_for_the_first_queue(self) -> None:
        """Nine of 41 tokens are to be computed, which is less than another's 20."""
        bench = self.prompt_is_on_the_host()
        bench.in_place("q", prompt=20)
        self.submit_the_same(bench)
        commands = bench.iterate(o=2)
        assert [move.sequence_id for move in only(commands, c.SwapIn)] == ["p@1"]


def test_a_failed_iteration_is_no_turn() -> None:
    """A sequence of which nothing was computed since it got its blocks is not swapped out: the host would keep nothing."""
    bench = WorkerBench(blocks=6, policy=POLICY)
    bench.in_place("a", prompt=38)
    bench.feed(c.IterationFailed("bad luck"))
    (sequence,) = bench.role.sequences
    assert (sequence.computed_tokens, len(sequence.block_ids), sequence.has_run) == (0, 3, False)
    bench.iterate(a=51)
    assert sequence.has_run
