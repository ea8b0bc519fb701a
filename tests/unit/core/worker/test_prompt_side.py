"""Prompts that wait, and KV that is handed off."""

from __future__ import annotations

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.requests.request import FinishReason
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import WorkerPolicy
from tests.unit.core.builders import ledger, only, sent
from tests.unit.core.worker.bench import HERE, STOP_TOKEN, TARGET, WorkerBench, deltas, error_delta, rows, stream_of


class TestStart:
    """A prompt is queued until the engine knows it."""

    def test_the_record_is_fetched_and_no_block_taken_yet(self, bench: WorkerBench) -> None:
        """A waiting prompt holds nothing; it counts as pending."""
        assert bench.start("r", prompt=30) == [c.LoadRecord("r", 1)]
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.remaining_tokens, load.waiting, load.kv_blocks_free) == (30, 0, 1, 20)

    def test_once_loaded_it_runs_whole(self, bench: WorkerBench) -> None:
        """All its tokens in one row, from position 0; blocks for the prompt alone."""
        (order,) = only(bench.prefill("r", prompt=30), c.RunIteration)
        (row,) = order.batch.rows
        assert (row.first_position, row.num_tokens, row.block_ids) == (0, 30, (0, 1))

    def test_an_order_delivered_twice_is_one(self, bench: WorkerBench) -> None:
        bench.start("r")
        assert bench.start("r") == []
        assert bench.role.load().pending_prompt_tokens == 30

    def test_an_order_that_comes_again_while_its_first_load_is_unanswered_is_given_back(
        self, bench: WorkerBench
    ) -> None:
        """The answer to that load must not pass for one to the second."""
        bench.start("r")
        bench.feed(m.CancelRequest("r", 1))
        assert error_delta(bench.start("r")).retryable
        bench.load("r")
        assert bench.start("r") == [c.LoadRecord("r", 1)]

    def test_a_new_attempt_replaces_the_old_one_and_frees_its_reservation(self, bench: WorkerBench) -> None:
        """The old attempt's token worker need not wait for the lease."""
        bench.start("r", 1)
        commands = bench.start("r", 2)
        assert sent(commands, "t") == [m.CancelRequest("r", 1)]
        assert bench.role.load().pending_prompt_tokens == 30

    def test_a_prompt_that_could_never_fit_is_for_another_worker(self) -> None:
        """This one may have become smaller since it was chosen; its reservation is given back."""
        bench = WorkerBench(blocks=1)
        commands = bench.start("r", prompt=17)
        assert error_delta(commands).retryable
        assert sent(commands, "t") == [m.CancelRequest("r", 1)]
        assert only(commands, c.LoadRecord) == []
        bench.assert_empty()

    def test_a_missing_record_ends_the_attempt_and_frees_the_reservation(self) -> None:
        """The next attempt writes the record anew, unless the engine would refuse that one too."""
        for retryable in (False, True):
            bench = WorkerBench()
            bench.start("r")
            commands = bench.feed(c.RecordUnavailable("r", 1, "gone", retryable))
            assert error_delta(commands).retryable is retryable
            assert sent(commands, "t") == [m.CancelRequest("r", 1)]
            bench.assert_empty()


class TestHandoff:
    """The first token goes to the gateway, the KV to the reservation."""

    def test_the_token_is_published_and_the_prompt_blocks_are_pushed(self, bench: WorkerBench) -> None:
        """Exactly the prompt's blocks, in order, without KV of the first token, which carries its waiting time."""
        bench.start("r", prompt=30)
        bench.now += 2.0
        bench.load("r")
        commands = bench.iterate(after_s=0.5, r=50)
        delta = m.TokenDelta(stream_of("r").attempt_id, 0, 50, queue_s=2.0, cached_tokens=0)
        assert commands[0] == m.Send("g", m.TokenBatch("w", (delta,), incarnation=9, number=1), incarnation=0)
        assert only(commands, c.PushKv) == [c.PushKv(KvHandoff("r", 1, 30, 50), TARGET, (0, 1))]
        assert rows(commands) == []
        assert ledger(commands, "prefilled") == [
            {"prompt_tokens": 30, "cached_tokens": 0, "queue_s": 2.0, "prefill_s": 0.5}
        ]
        load = bench.role.load()
        assert (load.migrating, load.pending_prompt_tokens, load.kv_blocks_free) == (1, 0, 18)

    def test_a_prompt_that_fills_its_blocks_pushes_all_of_them_and_no_more(self) -> None:
        """32 tokens are two blocks, 33 are three."""
        for prompt, blocks in ((16, (0,)), (32, (0, 1)), (33, (0, 1, 2))):
            bench = WorkerBench()
            bench.prefill("r", prompt=prompt)
            assert only(bench.iterate(r=50), c.PushKv)[0].source_block_ids == blocks

    def test_a_delivered_hand_off_is_recorded_and_let_go(self, bench: WorkerBench) -> None:
        """The blocks are free, the engine drops the sequence, and the gateway gets no message."""
        bench.prefill("r")
        bench.iterate(r=50)
        commands = bench.delivered("r")
        assert ledger(commands, "handed_off") == [
            {
                "token_worker": "t",
                "kv_bytes": 4096,
                "transfer_s": 0.25,
                "visible_s": 0.125,
                "mode": "serial",
                "transport": "shm",
            }
        ]
        assert commands[-1] == c.DropSequence("r@1")
        assert deltas(commands) == []
        assert bench.role.load().kv_push_token_s == 0.125 / 30
        bench.assert_empty()

    def test_a_failed_hand_off_is_a_retryable_error(self, bench: WorkerBench) -> None:
        """The gateway has the first token, so the next attempt starts at index 1; the reservation is given back."""
        bench.prefill("r")
        bench.iterate(r=50)
        commands = bench.feed(h.HandoffFailed("r", 1, "refused"))
        delta = error_delta(commands)
        assert (delta.retryable, delta.token_index) == (True, 1)
        assert "refused" in delta.error
        assert sent(commands, "t") == [m.CancelRequest("r", 1)]
        bench.assert_empty()

    def test_news_of_a_push_that_is_not_under_way_changes_nothing(self, bench: WorkerBench) -> None:
        """The end of a push of an unknown or waiting request is ignored."""
        assert bench.delivered("unknown") == []
        bench.start("r")
        assert bench.delivered("r") == []
        assert bench.feed(h.HandoffFailed("r", 1, "odd")) == []
        assert bench.role.load().waiting == 1

    def test_a_first_token_that_ends_the_request_pushes_nothing(self) -> None:
        for token, max_new, reason in ((STOP_TOKEN, 10, FinishReason.STOP), (50, 1, FinishReason.LENGTH)):
            bench = WorkerBench()
            bench.prefill("r", max_new=max_new)
            commands = bench.iterate(r=token)
            (delta,) = deltas(commands)
            assert (delta.token_id, delta.finish_reason) == (token, reason)
            assert only(commands, c.PushKv) == []
            assert sent(commands, "t") == [m.CancelRequest("r", 1)]
            assert ledger(commands, "decoded") == []
            assert len(ledger(commands, "prefilled")) == 1
            bench.assert_empty()

    def test_a_later_attempt_prefills_the_committed_tokens_and_numbers_after_them(self, bench: WorkerBench) -> None:
        """Prompt and committed outputs are one prompt to the prompt worker."""
        bench.start("r", prompt=32)
        bench.load("r", committed=(7, 8))
        commands = bench.iterate(r=50)
        assert deltas(commands)[0].token_index == 2
        assert only(commands, c.PushKv)[0].handoff.num_tokens == 32


class TestRenewal:
    """Reservations of prompts in work are kept alive."""

    def test_one_message_goes_to_each_token_worker(self, bench: WorkerBench) -> None:
        """Waiting, running and pushed ones alike, three times a lease."""
        bench.prefill("a")
        bench.iterate(a=50)
        bench.prefill("b")
        bench.start("c", target=KvTarget("t2", 1, "t2:2", (0, 1, 2)))
        commands = bench.tick()
        assert commands == [
            m.Send("t", m.RenewLeases((("a", 1), ("b", 1)))),
            m.Send("t2", m.RenewLeases((("c", 1),))),
        ]
        assert bench.tick(after_s=0.9) == []
        assert len(bench.tick(after_s=0.1)) == 2

    def test_all_leases_of_a_worker_are_renewed_as_often_as_the_shortest_needs(self, bench: WorkerBench) -> None:
        """A long one is renewed along with it, and neither waits for the other."""
        bench.start("short", lease_s=3.0)
        bench.start("long", lease_s=9.0)
        renewal = m.Send("t", m.RenewLeases((("short", 1), ("long", 1))))
        assert bench.tick() == [renewal]
        for _ in range(5):
            assert bench.tick(after_s=0.5) == []
            assert bench.tick(after_s=0.5) == [renewal]
        bench.feed(m.CancelRequest("short", 1))
        assert bench.tick(after_s=2.9) == []
        assert bench.tick(after_s=0.1) == [m.Send("t", m.RenewLeases((("long", 1),)))]

    def test_what_is_over_is_not_renewed(self, bench: WorkerBench) -> None:
        """Handed off, or pending_free in the middle of a push."""
        for choice_id in ("a", "b"):
            bench.prefill(choice_id)
            bench.iterate(**{choice_id: 50})
        bench.delivered("a")
        bench.feed(m.CancelRequest("b", 1))
        assert bench.tick(after_s=1.0) == []


class TestInPlace:
    """Both phases on one worker."""

    def test_it_is_accepted_and_computed_in_blocks_of_its_own(self, bench: WorkerBench) -> None:
        """A prompt for this worker is neither reserved nor pushed; its blocks hold the prompt and the tokens after it."""
        commands = bench.start("r", prompt=30, new=10, target=HERE, number=7)
        assert commands == [m.Send("s", m.PrefillAccepted("r", 1, 7, "w")), c.LoadRecord("r", 1)]
        (order,) = only(bench.load("r"), c.RunIteration)
        (row,) = order.batch.rows
        assert (row.first_position, row.num_tokens, row.block_ids) == (0, 30, (0, 1, 2))
        commands = bench.iterate(after_s=0.5, r=50)
        assert deltas(commands) == [m.TokenDelta(stream_of("r").attempt_id, 0, 50, queue_s=0.0, cached_tokens=0)]
        assert only(commands, c.PushKv) == []
        assert rows(commands) == ["r@1"]
        assert len(ledger(commands, "prefilled")) == 1
        assert deltas(bench.iterate(r=51)) == [m.TokenDelta(stream_of("r").attempt_id, 1, 51)]

    def test_on_demand_it_has_blocks_for_its_prompt_only(self) -> None:
        """Blocks for further tokens are allocated as they come."""
        bench = WorkerBench(policy=WorkerPolicy(watermark=0.0))
        bench.in_place("r", prompt=30)
        assert bench.pool.used_blocks == 2

    def test_the_ledger_distinguishes_the_phases(self, bench: WorkerBench) -> None:
        """The first token and its time belong to the prompt phase."""
        bench.in_place("r")
        bench.iterate(after_s=2.0, r=50)
        bench.iterate(after_s=0.25, r=51)
        (facts,) = ledger(bench.iterate(after_s=0.25, r=STOP_TOKEN), "decoded")
        assert facts == {"tokens": 2, "decode_s": 0.5, "finish_reason": "stop"}
        bench.assert_empty()

    def test_it_counts_from_its_order_on(self, bench: WorkerBench) -> None:
        """Before its record is known: its prompt, its tokens, and the blocks that it waits for."""
        bench.start("r", prompt=30, new=10, target=HERE)
        load = bench.role.load()
        assert (load.pending_prompt_tokens, load.remaining_tokens, load.prompts_in_place) == (30, 10, 1)
        assert (load.kv_blocks_free, load.kv_blocks_kept) == (20, 3)

    def test_it_has_no_lease(self, bench: WorkerBench) -> None:
        bench.in_place("r")
        assert bench.tick(after_s=100.0) == []

    def test_an_order_delivered_twice_changes_nothing(self, bench: WorkerBench) -> None:
        bench.in_place("r")
        assert bench.start("r", target=HERE) == []
        bench.iterate(r=STOP_TOKEN)
        bench.assert_empty()

    def test_a_draining_worker_refuses_it(self, bench: WorkerBench) -> None:
        bench.feed(m.Drain("w", bench.now + 60.0))
        assert bench.start("r", target=HERE, number=7) == [m.Send("s", m.KvRefused("r", 1, 7, "w", "draining"))]
        bench.assert_empty()

    def test_what_would_never_fit_is_refused(self) -> None:
        """A request whose prompt and answer together exceed the memory is refused; a smaller one waits."""
        bench = WorkerBench(blocks=3)
        (refusal,) = only(bench.start("r", prompt=30, new=19, target=HERE), m.KvRefused)
        assert refusal.reason == "4 blocks may be needed, there are 3"
        assert only(bench.start("s", prompt=30, new=18, target=HERE), m.PrefillAccepted) != []

    def test_an_attempt_whose_reservation_is_still_being_undone_is_refused(self, bench: WorkerBench) -> None:
        """The answer to the first load of its record could be taken for that of the second."""
        bench.reserve("r")
        bench.feed(m.CancelRequest("r", 1))
        (refusal,) = only(bench.start("r", target=HERE), m.KvRefused)
        assert "still being undone" in refusal.reason
        bench.assert_empty()

    def test_a_newer_attempt_ends_the_earlier_one(self, bench: WorkerBench) -> None:
        bench.in_place("r")
        bench.start("r", 2, target=HERE)
        assert deltas(bench.iterate(r=50)) == []
        assert rows(bench.load("r", 2)) == ["r@2"]
