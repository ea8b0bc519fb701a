"""What runs next, and what an iteration's results mean."""

from __future__ import annotations

import pytest

from spotwise.core.costs.batching import BatchLimits
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.sampling import SampledToken, TokenLogprobs
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Batching, Reserve, WorkerPolicy
from tests.unit.core.builders import ledger, only, sent
from tests.unit.core.worker.bench import HERE, STOP_TOKEN, WorkerBench, deltas, error_delta, row_of, rows, stream_of


class TestScheduling:
    """One iteration is in flight; waiting sequences join the next."""

    def test_what_comes_during_an_iteration_joins_the_next_one(self, bench: WorkerBench) -> None:
        """Decodes and prompts share it, in order of arrival."""
        assert rows(bench.decode("d")) == ["d@1"]
        assert rows(bench.prefill("a")) == []
        assert rows(bench.decode("e")) == []
        assert rows(bench.iterate(d=51)) == ["d@1", "a@1", "e@1"]

    def test_an_idle_worker_runs_nothing(self, bench: WorkerBench) -> None:
        """An iteration that ends with nothing left orders none."""
        bench.prefill("a")
        bench.iterate(a=STOP_TOKEN)
        assert bench.tick() == []
        assert bench.role.iterations == 1

    def test_prompts_share_a_batch_up_to_the_cap(self) -> None:
        """2,048 prompt tokens by default; the next prompt waits for the next batch, and no later one overtakes it."""
        bench = WorkerBench(blocks=1000)
        bench.decode("d")
        for choice_id, prompt in (("a", 2000), ("b", 48), ("c", 1), ("e", 1)):
            bench.prefill(choice_id, prompt=prompt)
        assert rows(bench.iterate(d=51)) == ["d@1", "a@1", "b@1"]
        assert rows(bench.iterate(d=51, a=50, b=50)) == ["d@1", "c@1", "e@1"]

    def test_a_prompt_beyond_the_cap_runs_alone_among_prompts(self) -> None:
        bench = WorkerBench(blocks=1000)
        bench.decode("d")
        for choice_id, prompt in (("a", 10), ("b", 3000), ("c", 10)):
            bench.prefill(choice_id, prompt=prompt)
        assert rows(bench.iterate(d=51)) == ["d@1", "a@1"]
        assert rows(bench.iterate(d=51, a=50)) == ["d@1", "b@1"]
        assert rows(bench.iterate(d=51, b=50)) == ["d@1", "c@1"]

    def test_at_most_max_num_seqs_rows_run(self) -> None:
        """Rows go to the earliest arrivals; a prompt waits for a row with its blocks untouched."""
        bench = WorkerBench(limits=BatchLimits(max_num_seqs=2))
        bench.decode("d")
        bench.decode("e")
        bench.prefill("a")
        assert rows(bench.iterate(d=51)) == ["d@1", "e@1"]
        assert bench.pool.used_blocks == 6
        assert rows(bench.iterate(d=STOP_TOKEN, e=51)) == ["e@1", "a@1"]

    def test_a_prompt_without_blocks_waits_and_is_not_passed(self) -> None:
        bench = WorkerBench(blocks=3)
        bench.prefill("a", prompt=32)
        bench.prefill("large", prompt=32)
        bench.prefill("small", prompt=1)
        assert rows(bench.iterate(a=50)) == []
        assert bench.pool.used_blocks == 2
        assert rows(bench.delivered("a")) == ["large@1", "small@1"]

    def test_a_long_prompt_is_computed_in_parts(self) -> None:
        """Each chunk begins where the last one ended; the first token and the hand-off follow the last chunk."""
        bench = WorkerBench(limits=BatchLimits(max_num_seqs=4, max_num_batched_tokens=16))
        bench.decode("d")
        bench.prefill("p", prompt=40)
        for first, tokens in ((0, 15), (15, 15)):
            commands = bench.iterate(d=51)
            assert row_of(commands, "p") == (first, tokens)
            assert only(commands, c.PushKv) == []
            assert bench.role.load().pending_prompt_tokens == 40 - first
        assert row_of(bench.iterate(d=51), "p") == (30, 10)
        commands = bench.iterate(d=51, p=50)
        assert [delta.token_id for delta in deltas(commands)] == [51, 50]
        assert only(commands, c.PushKv)[0].handoff.num_tokens == 40
        assert ledger(commands, "prefilled")[0]["prompt_tokens"] == 40
        assert bench.role.load().pending_prompt_tokens == 0

    def test_the_next_prompt_gets_what_the_last_part_leaves(self) -> None:
        bench = WorkerBench(limits=BatchLimits(max_num_seqs=4, max_num_batched_tokens=16))
        assert rows(bench.prefill("a", prompt=30)) == ["a@1"]
        bench.prefill("b", prompt=10)
        commands = bench.iterate()
        assert (row_of(commands, "a"), row_of(commands, "b")) == ((16, 14), (0, 2))
        assert row_of(bench.iterate(a=50), "b") == (2, 8)

    def test_one_message_goes_to_each_gateway_an_iteration(self, bench: WorkerBench) -> None:
        bench.decode("a")
        bench.decode("b", gateway="g2")
        bench.prefill("p")
        bench.iterate(a=51)
        commands = bench.iterate(a=52, b=53, p=50)
        assert [type(command) for command in commands[:2]] == [m.Send, m.Send]
        assert len(sent(commands, "g")) == len(sent(commands, "g2")) == 1
        assert [delta.token_id for delta in deltas(commands)] == [52, 50]
        assert [delta.token_id for delta in deltas(commands, "g2")] == [53]

    def test_logprobs_travel_with_their_token(self, bench: WorkerBench) -> None:
        """The role hands on what the engine reports."""
        bench.prefill("r")
        own, of_prompt = TokenLogprobs(-0.5, (1,), (-0.5,)), (None, TokenLogprobs(-1.0))
        commands = bench.feed(c.IterationFinished((SampledToken("r@1", 50, own, of_prompt),)))
        (delta,) = deltas(commands)
        assert (delta.logprobs, delta.prompt_logprobs) == (own, of_prompt)

    def test_embeddings_travel_with_their_token(self, bench: WorkerBench) -> None:
        """The role hands on what the engine reports, in batches that a broker takes, each with its number."""
        for name in ("first", *"abcde"):
            bench.prefill(name)
        bench.iterate(first=50)
        embedding = (0.5,) * 30_000
        sampled = tuple(SampledToken(f"{name}@1", 50, embedding=embedding) for name in "abcde")
        batches = sent(bench.feed(c.IterationFinished(sampled)), "g")
        assert [len(batch.deltas) for batch in batches] == [2, 2, 1]
        assert [delta.embedding for batch in batches for delta in batch.deltas] == [embedding] * 5
        assert [batch.number for batch in batches] == [2, 3, 4]

    def test_a_sequence_that_cannot_go_on_fails_alone(self, bench: WorkerBench) -> None:
        """For good, since it would elsewhere, too; the others of its batch have their tokens."""
        bench.decode("a")
        bench.decode("b")
        bench.iterate(a=51, b=52)
        sampled = (SampledToken("a@1", 0, failure="no way on"), SampledToken("b@1", 53))
        failed, drawn = deltas(bench.feed(c.IterationFinished(sampled)))
        assert (failed.token_id, failed.error, failed.retryable) == (None, "no way on", False)
        assert drawn.token_id == 53

    def test_an_engine_failure_tries_what_was_in_the_batch_again(self, bench: WorkerBench) -> None:
        """The batch's members are tried again in parts, and no other sequence meanwhile, as in `test_examination.py`."""
        bench.decode("a")
        bench.prefill("p")
        bench.iterate(a=51)
        bench.decode("later")
        commands = bench.feed(c.IterationFailed("out of memory"))
        assert deltas(commands) == sent(commands, "t") == ledger(commands, "failed") == []
        assert rows(commands) == ["a@1"]
        assert bench.pool.owners == 3
        assert bench.role.iterations == 1


class TestPipeline:
    """Several iterations in flight, one for each stage."""

    @staticmethod
    def bench() -> WorkerBench:
        policy = WorkerPolicy(BatchLimits(2), Reserve.MAX_TOKENS, prefix_caching=False, max_in_flight=2)
        return WorkerBench(policy=policy)

    def test_a_sequence_that_comes_while_a_batch_is_in_flight_goes_into_another(self) -> None:
        """A new sequence joins another batch than the one in flight, and waits once there are as many batches as stages."""
        bench = self.bench()
        assert rows(bench.in_place("a")) == ["a@1"]
        assert rows(bench.in_place("b")) == ["b@1"]
        assert rows(bench.in_place("c")) == []
        assert rows(bench.iterate(a=50)) == ["a@1", "c@1"]

    def test_results_are_those_of_the_oldest_batch(self) -> None:
        """A failed oldest batch is tried again once nothing else is in flight; the other batch continues."""
        bench = self.bench()
        bench.in_place("a")
        bench.in_place("b")
        assert rows(bench.feed(c.IterationFailed("broken"))) == []
        commands = bench.iterate(b=50)
        assert [delta.attempt_id for delta in deltas(commands)] == [stream_of("b").attempt_id]
        assert rows(commands) == ["a@1"]
        assert rows(bench.iterate(a=50)) == ["a@1", "b@1"]

    def test_one_cancelled_in_flight_keeps_its_blocks_until_its_own_batch_ends(self) -> None:
        """The end of another one does not free them."""
        bench = self.bench()
        bench.in_place("a")
        bench.in_place("b")
        bench.feed(m.CancelRequest("b", 1))
        bench.iterate(a=STOP_TOKEN)
        assert bench.pool.used_blocks == 3
        assert bench.iterate() == [c.DropSequence("b@1")]
        bench.assert_empty()


class TestDecodesThatPause:
    """Prompts that fill an iteration run without decodes."""

    def test_a_decode_goes_on_where_it_paused(self) -> None:
        """A decode that finds no token beside prompts keeps its blocks, and has its next token in the iteration after them."""
        bench = WorkerBench(limits=BatchLimits(4, 60, decodes_pause=True))
        assert rows(bench.in_place("a")) == ["a@1"]
        bench.in_place("b")
        bench.in_place("c")
        bench.in_place("d")
        assert rows(bench.iterate(a=50)) == ["b@1", "c@1"]
        used = bench.pool.used_blocks
        assert rows(bench.iterate(b=50, c=50)) == ["a@1", "b@1", "c@1", "d@1"]
        assert bench.pool.used_blocks >= used
        assert rows(bench.iterate(a=STOP_TOKEN, b=STOP_TOKEN, c=STOP_TOKEN, d=STOP_TOKEN)) == []
        bench.assert_empty()


class TestRequestLevelBatches:
    """The baseline: a batch runs until all of it has ended."""

    @staticmethod
    def bench(max_num_seqs: int = 8, max_prompt_tokens: int = 2048) -> WorkerBench:
        limits = BatchLimits(max_num_seqs, max_prompt_tokens)
        policy = WorkerPolicy(limits, Reserve.MAX_TOKENS, prefix_caching=False, batching=Batching.REQUEST_LEVEL)
        return WorkerBench(policy=policy)

    def test_no_sequence_joins_before_all_have_ended(self) -> None:
        bench = self.bench()
        assert rows(bench.in_place("a")) == ["a@1"]
        bench.in_place("b")
        bench.in_place("c")
        assert rows(bench.iterate(a=50)) == ["a@1"]
        assert rows(bench.iterate(a=STOP_TOKEN)) == ["b@1", "c@1"]
        bench.in_place("d")
        assert rows(bench.iterate(b=50, c=STOP_TOKEN)) == ["b@1"]
        assert rows(bench.iterate(b=STOP_TOKEN)) == ["d@1"]

    def test_a_batch_is_as_many_as_there_are_rows_for(self) -> None:
        """A batch has as many sequences as rows; their prompts may take several iterations beside decodes."""
        bench = self.bench(max_num_seqs=3, max_prompt_tokens=60)
        bench.in_place("a")
        for name in "bcde":
            bench.in_place(name)
        assert rows(bench.iterate(a=STOP_TOKEN)) == ["b@1", "c@1"]
        assert rows(bench.iterate(b=50, c=50)) == ["b@1", "c@1", "d@1"]
        assert rows(bench.iterate(b=STOP_TOKEN, c=STOP_TOKEN, d=50)) == ["d@1"]
        assert rows(bench.iterate(d=STOP_TOKEN)) == ["e@1"]

    def test_prompts_for_another_worker_end_with_their_hand_off(self) -> None:
        """The next batch need not wait until the KV has arrived."""
        bench = self.bench()
        bench.prefill("a")
        bench.prefill("b")
        assert rows(bench.iterate(a=50)) == ["b@1"]


class TestCondemned:
    """Sequences that end while their blocks are in use keep them until the iteration or push has ended."""

    @pytest.mark.parametrize("ends", ["finished", "failed"])
    def test_cancelled_in_mid_iteration(self, ends: str, bench: WorkerBench) -> None:
        """The blocks stay until the iteration ends, however it does; its token is published nowhere."""
        bench.decode("r")
        assert bench.feed(m.CancelRequest("r", 1)) == []
        assert bench.pool.used_blocks == 3
        assert bench.role.load().remaining_tokens == 0
        commands = bench.iterate(r=51) if ends == "finished" else bench.feed(c.IterationFailed("broken"))
        assert commands == [c.DropSequence("r@1")]
        bench.assert_empty()

    def test_a_prompt_cancelled_in_mid_iteration_pushes_nothing(self, bench: WorkerBench) -> None:
        """The reservation is released at once, the blocks when the iteration ends, and other sequences continue."""
        bench.prefill("r")
        bench.decode("d")
        commands = bench.feed(m.CancelRequest("r", 1))
        assert commands == [m.Send("t", m.CancelRequest("r", 1))]
        assert bench.pool.used_blocks == 5
        commands = bench.iterate(r=50)
        assert rows(commands) == ["d@1"]
        assert (deltas(commands), only(commands, c.PushKv)) == ([], [])
        assert bench.pool.used_blocks == 3

    @pytest.mark.parametrize("ends", ["delivered", "failed"])
    def test_cancelled_in_mid_push(self, ends: str, bench: WorkerBench) -> None:
        """The blocks stay until the push ends, delivered or failed; the gateway gets no message."""
        bench.prefill("r")
        bench.iterate(r=50)
        called_off = [m.Send("t", m.CancelRequest("r", 1)), h.AbortPush("r", 1)]
        assert bench.feed(m.CancelRequest("r", 1)) == called_off
        assert bench.pool.used_blocks == 2
        bench.tick(after_s=0.1)
        commands = bench.delivered("r") if ends == "delivered" else bench.feed(h.HandoffFailed("r", 1, "cancelled"))
        assert commands == [c.DropSequence("r@1")]
        bench.assert_empty()

    def test_cancelled_twice_is_cancelled_once(self, bench: WorkerBench) -> None:
        """The pending_free are out of reach of a second order."""
        bench.prefill("r")
        bench.feed(m.CancelRequest("r", 1))
        assert bench.feed(m.CancelRequest("r", 1)) == []

    def test_the_same_attempt_is_not_reserved_again_before_it_has_left(self, bench: WorkerBench) -> None:
        """The attempt is refused while its former blocks are still written."""
        bench.decode("r")
        bench.feed(m.CancelRequest("r", 1))
        assert only(bench.reserve("r"), m.KvRefused)[0].reason == "reserved already"

    def test_the_next_attempt_may_come_while_the_old_one_is_still_leaving(self, bench: WorkerBench) -> None:
        """The next attempt is reserved in blocks of its own while the earlier one still runs."""
        bench.decode("r", 1)
        assert len(only(bench.reserve("r", 2), m.KvReserved)) == 1
        assert bench.pool.used_blocks == 6
        assert bench.iterate(r=51) == [c.DropSequence("r@1")]
        assert bench.pool.used_blocks == 3


def test_load_counts_by_state_and_back_to_zero(bench: WorkerBench) -> None:
    """Every sequence is in one count at a time; owed tokens shrink as they are produced."""
    bench.prefill("pushed", prompt=20)
    bench.iterate(pushed=50)
    bench.decode("running")
    bench.reserve("reserved")
    bench.start("waiting", prompt=25)
    load = bench.role.load()
    assert (load.migrating, load.running, load.waiting_for_kv, load.waiting) == (1, 1, 1, 1)
    assert (load.pending_prompt_tokens, load.kv_blocks_total, load.kv_block_size) == (25, 20, 16)
    assert load.kv_blocks_free == 20 - 2 - 3 - 3
    owed = load.remaining_tokens
    bench.iterate(running=51)
    assert bench.role.load().remaining_tokens == owed - 1
    bench.iterate(running=STOP_TOKEN)
    bench.delivered("pushed")
    bench.feed(m.CancelRequest("waiting", 1))
    bench.feed(m.CancelRequest("reserved", 1))
    bench.assert_empty()


def test_numbers_that_are_none_are_tried_once_more_elsewhere() -> None:
    """The model may be at fault, or this machine: a first attempt is retried on another worker, a later one fails for good."""
    for epoch, retryable in ((1, True), (2, False)):
        bench = WorkerBench()
        bench.start("r", epoch, target=HERE)
        bench.load("r", epoch)
        sampled = SampledToken(f"r@{epoch}", 0, failure="no number", may_be_ill=True)
        delta = error_delta(bench.feed(c.IterationFinished((sampled,))))
        assert (delta.error, delta.retryable, delta.suspects) == ("no number", retryable, ("w",) if retryable else ())
        bench.assert_empty()
