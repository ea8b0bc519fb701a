"""Blocks on demand, first come, first served: growth, preemption, and return."""

from __future__ import annotations

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import mesh as m
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from tests.unit.core.builders import ledger, only
from tests.unit.core.worker.bench import WorkerBench, deltas, rows

NO_SPARE = WorkerPolicy(watermark=0.0, prefix_caching=False)


def bench_of(blocks: int, policy: WorkerPolicy = NO_SPARE) -> WorkerBench:
    return WorkerBench(blocks=blocks, policy=policy)


def preempted(blocks: int = 4, policy: WorkerPolicy = NO_SPARE) -> tuple[WorkerBench, list[c.WorkerCommand]]:
    """Two sequences of 30 prompt tokens fill 4 blocks; at their 33rd token the first takes the second one's."""
    bench = bench_of(blocks, policy)
    bench.decode("a")
    bench.decode("b")
    bench.iterate(a=51)
    return bench, bench.iterate(a=52, b=51)


class TestReservation:
    """The blocks that are reserved, and those that a newcomer must leave."""

    def test_blocks_for_the_prompt_and_the_first_token_are_reserved(self) -> None:
        """Blocks are reserved for the prompt and one token, not for the ten possible ones: 33 tokens take 3 blocks of 16."""
        bench = bench_of(20)
        (granted,) = only(bench.reserve("r", tokens=42, new=10), m.KvReserved)
        assert len(granted.target.block_ids) == 3

    def test_with_max_tokens_all_that_may_ever_come_is_reserved(self) -> None:
        bench = bench_of(20, WorkerPolicy(reserve=Reserve.MAX_TOKENS))
        (granted,) = only(bench.reserve("r", tokens=132, new=100), m.KvReserved)
        assert len(granted.target.block_ids) == 9
        assert bench.role.load().reserved_new_tokens is None

    def test_what_would_not_fit_alone_is_refused(self) -> None:
        """The request's prompt would fit, but not its last tokens."""
        bench = bench_of(4)
        (refused,) = only(bench.reserve("r", tokens=65, new=60), m.KvRefused)
        assert refused.reason == "5 blocks may be needed, there are 4"
        bench.assert_empty()

    def test_a_newcomer_leaves_the_others_room_to_grow(self) -> None:
        """A tenth of the blocks is kept free beside other sequences; a sequence alone may take all."""
        bench = bench_of(10, WorkerPolicy(watermark=0.1))
        assert bench.role.load().kv_blocks_kept == 0
        bench.reserve("a", tokens=130, new=10)
        load = bench.role.load()
        assert (load.kv_blocks_free, load.kv_blocks_kept, load.reserved_new_tokens) == (2, 1, 1)
        (refused,) = only(bench.reserve("b", tokens=30, new=10), m.KvRefused)
        assert refused.reason == "2 blocks needed, 2 free, 1 of them kept"
        assert only(bench.reserve("c", tokens=20, new=10), m.KvReserved) != []

    def test_a_newcomer_leaves_what_a_preempted_one_waits_for(self) -> None:
        """A preempted sequence would otherwise wait for ever while newcomers come."""
        bench, _ = preempted()
        assert bench.role.load().kv_blocks_kept == 2
        (refused,) = only(bench.reserve("new", tokens=11, new=10), m.KvRefused)
        assert refused.reason == "1 blocks needed, 1 free, 2 of them kept"


class TestPreemption:
    """The last arrival gives its blocks to an earlier one and is recomputed."""

    def test_the_last_one_gives_its_blocks_to_one_that_came_before(self) -> None:
        """The last arrival leaves the batch and keeps its tokens, and its gateway gets no message."""
        bench, commands = preempted()
        assert rows(commands) == ["a@1"]
        assert ledger(commands, "preempted") == [{"computed_tokens": 31, "preemptions": 1}]
        assert [delta.token_id for delta in deltas(commands)] == [52, 51]
        load = bench.role.load()
        assert (load.running, load.preempted, load.preemptions) == (1, 1, 1)
        assert (load.pending_prompt_tokens, load.kv_blocks_free) == (32, 1)

    def test_it_is_computed_again_from_its_tokens_and_continues_counting(self) -> None:
        """One row computes all that it knows; the next token has the next number."""
        bench, _ = preempted()
        commands = bench.iterate(a=2)
        (order,) = only(commands, c.RunIteration)
        (row,) = order.batch.rows
        assert (row.sequence_id, row.first_position, row.num_tokens) == ("b@1", 0, 32)
        assert only(commands, c.AppendToken) == []
        commands = bench.iterate(b=52)
        assert [(delta.token_index, delta.queue_s) for delta in deltas(commands)] == [(2, None)]
        assert ledger(commands, "prefilled") == []
        commands = bench.iterate(b=2)
        assert ledger(commands, "decoded")[0]["tokens"] == 3
        bench.assert_empty()

    def test_the_first_is_never_a_victim(self) -> None:
        """The last one waits for blocks itself, and keeps what it has."""
        bench = bench_of(5)
        bench.decode("a")
        bench.decode("b")
        bench.iterate(a=51)
        assert rows(bench.iterate(a=52, b=51)) == ["a@1", "b@1"]
        commands = bench.iterate(a=53, b=52)
        assert rows(commands) == ["a@1"]
        assert ledger(commands, "preempted") == []
        assert bench.pool.used_blocks == 5
        assert rows(bench.iterate(a=2)) == ["b@1"]

    def test_a_reservation_is_no_victim(self) -> None:
        """A reservation is never preempted, since its KV is in transfer; a sequence without blocks waits until it has
        arrived.
        """
        bench = bench_of(4)
        bench.decode("a")
        bench.reserve("r", tokens=31, new=10)
        bench.iterate(a=51)
        assert rows(bench.iterate(a=52)) == []
        bench.load("r")
        commands = bench.arrive("r", tokens=21)
        assert ledger(commands, "preempted") == [{"computed_tokens": 21, "preemptions": 1}]
        assert rows(commands) == ["a@1"]

    def test_after_some_preemptions_it_comes_back_with_all_its_blocks_and_stays(self) -> None:
        """The sequence waits for blocks for its prompt and all ten tokens, and later sequences wait behind it."""
        bench, _ = preempted(policy=WorkerPolicy(watermark=0.0, max_preemptions=1, prefix_caching=False))
        assert bench.role.load().kv_blocks_kept == 3
        assert rows(bench.iterate(a=2)) == ["b@1"]
        assert bench.pool.used_blocks == 3

    def test_a_preempted_one_can_be_cancelled(self) -> None:
        """A preempted sequence holds only its place in the queue."""
        bench, _ = preempted()
        assert bench.feed(m.CancelRequest("b", 1)) == [c.DropSequence("b@1")]
        bench.iterate(a=2)
        bench.assert_empty()

    def test_with_max_tokens_no_sequence_is_preempted(self) -> None:
        """The second sequence is not admitted before there is memory for all of it."""
        bench = bench_of(4, WorkerPolicy(reserve=Reserve.MAX_TOKENS))
        bench.decode("a")
        assert only(bench.reserve("b"), m.KvRefused) != []
        for _ in range(8):
            assert rows(bench.iterate(a=51)) == ["a@1"]
        bench.iterate(a=51)
        bench.assert_empty()

    def test_part_of_a_prompt_is_preempted_too(self) -> None:
        """Strictly first come, first served. What was computed of it is computed again; its first token is still its first."""
        limits = BatchLimits(max_num_seqs=4, max_num_batched_tokens=4)
        bench = bench_of(4, WorkerPolicy(limits, watermark=0.0, prefix_caching=False, prompts_first=False))
        bench.decode("a", prompt=30)
        bench.in_place("p", prompt=30)
        assert rows(bench.iterate(a=51)) == ["a@1", "p@1"]
        commands = bench.iterate(a=52)
        assert ledger(commands, "preempted") == [{"computed_tokens": 3, "preemptions": 1}]
        commands = bench.iterate(a=2)
        assert rows(commands) == ["p@1"]
        for _ in range(7):
            commands = bench.iterate()
        (delta,) = deltas(bench.iterate(p=50))
        assert delta.token_index == 0
        assert delta.queue_s is not None
