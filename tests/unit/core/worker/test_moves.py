"""Running sequences move to another worker with their KV: the source's side, and the target's."""

from __future__ import annotations

from typing import Any

import pytest

from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.core.worker import commands as c
from spotwise.core.worker.sequences.move import ACKNOWLEDGED_WITHIN_S, COPIED_WITHIN_S, RESERVED_WITHIN_S
from spotwise.core.worker.sequences.token_side import REPEAT_S, SILENT_AFTER_S
from tests.unit.core.builders import ledger, one, only, sent
from tests.unit.core.worker.bench import WorkerBench, deltas, error_delta, row_of, rows, stream_of

ROOM = KvTarget("x", 3, "x:2", (7, 8, 9))


def moving(**options: Any) -> WorkerBench:
    """A sequence of 30 prompt tokens that was ordered to move to `x`, with two tokens of its attempt."""
    bench = WorkerBench()
    bench.decode("r", **options)
    bench.iterate(r=51)
    bench.feed(m.MoveRequest("r", 1, "planner", "x"))
    return bench


def copying(**options: Any) -> WorkerBench:
    bench = moving(**options)
    bench.feed(m.KvReserved("r", 1, 0, ROOM))
    return bench


def parked() -> WorkerBench:
    """Its tail is being handed over; it decodes no more."""
    bench = copying()
    bench.feed(h.PushCaughtUp("r", 1, 1))
    bench.iterate(r=52)
    return bench


def delivered() -> WorkerBench:
    bench = parked()
    bench.delivered("r")
    return bench


def ended(commands: list[c.WorkerCommand]) -> m.MoveEnded:
    """The one report to who ordered the move."""
    return one(sent(commands, "planner"), m.MoveEnded)


class TestSource:
    """What a worker does with a sequence that it is to move."""

    def test_it_asks_the_target_for_blocks_and_decodes_on(self, bench: WorkerBench) -> None:
        """For all that the sequence may ever have; the scheduler stays known."""
        bench.decode("r")
        bench.iterate(r=51)
        commands = bench.feed(m.MoveRequest("r", 1, "planner", "x"))
        order = one(sent(commands, "x"), m.ReserveKv)
        assert (order.kv_tokens, order.scheduler_id, order.source_id, order.hop) == (40, "s", "w", 1)
        assert order.stream == stream_of("r")
        assert rows(bench.iterate(r=52)) == ["r@1"]

    @pytest.mark.parametrize(
        ("order", "reason"),
        [
            (m.MoveRequest("r", 2, "planner", "x"), "it does not run here"),
            (m.MoveRequest("other", 1, "planner", "x"), "it does not run here"),
            (m.MoveRequest("r", 1, "planner", "w"), "it is there already"),
        ],
        ids=["another attempt", "another request", "to itself"],
    )
    def test_what_cannot_move_is_refused(self, order: m.MoveRequest, reason: str, bench: WorkerBench) -> None:
        """The answer says why, and nothing changes."""
        bench.decode("r")
        report = ended(bench.feed(order))
        assert (report.outcome, report.reason) == (m.MoveOutcome.REFUSED, reason)
        assert rows(bench.iterate(r=51)) == ["r@1"]

    def test_a_prompt_that_is_not_computed_is_refused(self, bench: WorkerBench) -> None:
        """Neither a waiting prompt nor one whose KV goes to another worker in any case."""
        bench.in_place("r")
        bench.prefill("p")
        for choice_id in ("r", "p"):
            assert ended(bench.feed(m.MoveRequest(choice_id, 1, "planner", "x"))).outcome is m.MoveOutcome.REFUSED

    def test_a_second_order_does_not_disturb_the_first(self) -> None:
        """Delivered twice, or to another worker."""
        bench = copying()
        report = ended(bench.feed(m.MoveRequest("r", 1, "planner", "y")))
        assert (report.outcome, report.reason) == (m.MoveOutcome.REFUSED, "it is on its way to x")
        assert only(bench.feed(h.PushCaughtUp("r", 1, 1)), h.AbortPush) == []

    def test_full_blocks_leave_while_it_decodes_and_the_tail_after_it_parked(self) -> None:
        """The commit has all blocks and all tokens of the attempt; the last one has no KV yet."""
        bench = moving()
        commands = bench.feed(m.KvReserved("r", 1, 0, ROOM))
        (push,) = only(commands, h.OpenPush)
        assert (push.target, push.source_block_ids, push.num_tokens, push.written_tokens) == (ROOM, (0, 1), None, 31)
        assert rows(bench.iterate(r=52)) == ["r@1"]
        bench.feed(h.PushCaughtUp("r", 1, 1))
        commands = bench.iterate(r=53)
        assert rows(commands) == []
        (commit,) = only(commands, h.CommitPush)
        assert commit == h.CommitPush(KvHandoff("r", 1, 33, 50, None, (51, 52, 53)), (0, 1, 2))
        assert [delta.token_id for delta in deltas(commands)] == [53]

    def test_it_is_kept_until_its_gateway_takes_tokens_from_the_target(self) -> None:
        """Then its blocks are free, and the ledger has the move."""
        bench = copying()
        bench.feed(h.PushCaughtUp("r", 1, 1))
        bench.iterate(r=52, after_s=0.5)
        commands = bench.delivered("r", after_s=0.25)
        assert ended(commands).outcome is m.MoveOutcome.MOVED
        (facts,) = ledger(commands, "moved")
        assert (facts["token_worker"], facts["tokens"], facts["copied_before"], facts["pause_s"]) == ("x", 32, 31, 0.75)
        assert bench.role.load().migrating == 1
        commands = bench.feed(m.MoveAcknowledged("r", 1, "x", 1))
        assert deltas(commands) == []
        assert sent(commands, "x") == []
        bench.assert_empty()

    def test_an_engine_that_fails_for_every_request_fails_none_that_another_worker_has(self) -> None:
        """Its gateway would begin anew what goes on there."""
        bench = delivered()
        for name in "abc":
            bench.in_place(name)
        issued: list[c.WorkerCommand] = []
        while bench.role.state is not m.MemberState.DRAINING:
            issued += bench.feed(c.IterationFailed("bad luck"))
        failed = {delta.attempt_id for delta in deltas(issued) if delta.error is not None}
        assert failed == {stream_of(name).attempt_id for name in "abc"}
        bench.assert_empty()

    def test_the_gateways_word_may_come_before_the_transports(self) -> None:
        """The blocks are free when nothing reads them, and the order is answered then."""
        bench = parked()
        assert bench.feed(m.MoveAcknowledged("r", 1, "x", 1)) == []
        assert bench.pool.used_blocks == 3
        commands = bench.delivered("r")
        assert ended(commands).outcome is m.MoveOutcome.MOVED
        assert ledger(commands, "moved")
        bench.assert_empty()

    def test_a_hand_off_whose_answer_is_lost_is_one_all_the_same(self) -> None:
        """The gateway's word says so."""
        bench = parked()
        bench.feed(m.MoveAcknowledged("r", 1, "x", 1))
        commands = bench.feed(h.HandoffFailed("r", 1, "no answer"))
        assert ended(commands).outcome is m.MoveOutcome.MOVED
        assert sent(commands, "x") == []
        bench.assert_empty()

    def test_without_the_gateways_word_it_goes_on_here(self) -> None:
        """The target may be gone; when the word comes after all, this copy is dropped."""
        bench = delivered()
        assert rows(bench.tick(after_s=ACKNOWLEDGED_WITHIN_S / 2)) == []
        assert rows(bench.tick(after_s=ACKNOWLEDGED_WITHIN_S)) == ["r@1"]
        commands = bench.feed(m.MoveAcknowledged("r", 1, "x", 1))
        assert sent(commands, "x") == []
        bench.iterate(r=53)
        bench.assert_empty()

    @pytest.mark.parametrize(
        "end", [m.Drain("w", 100.0), m.GiveBackRequest("r", 1, "late", 1)], ids=["the deadline", "given back"]
    )
    def test_what_is_being_handed_over_is_not_taken_from_the_target(self, end: Any) -> None:
        """It may have arrived there already, and its gateway ignores what its former worker says."""
        bench = parked()
        commands = [*bench.feed(end), *bench.tick(after_s=0.1)]
        assert m.CancelRequest("r", 1) not in sent(commands, "x")
        assert deltas(commands) == []

    def test_an_answer_that_comes_again_takes_nothing_from_the_target(self) -> None:
        """A repeated reservation, at whatever step: the target may have the sequence by then."""
        for bench in (copying(), parked()):
            assert bench.feed(m.KvReserved("r", 1, 0, ROOM)) == []

    def test_a_target_that_refuses_or_does_not_answer_is_not_told_to_drop_anything(self) -> None:
        """It may have the sequence since an earlier move whose acknowledgement was lost."""
        bench = moving()
        assert sent(bench.feed(m.KvRefused("r", 1, 0, "x", "reserved already")), "x") == []
        bench.feed(m.MoveRequest("r", 1, "planner", "x"))
        assert sent(bench.tick(after_s=2 * RESERVED_WITHIN_S), "x") == []

    def test_an_old_word_of_the_gateway_takes_nothing_away(self, bench: WorkerBench) -> None:
        """It is about an earlier move; the sequence has come back since."""
        bench.feed(m.ReserveKv("r", 1, stream_of("r"), "s", 0, 40, 4, 3.0, "w0", 3))
        bench.load("r")
        bench.feed(c.KvArrived(KvHandoff("r", 1, 33, 50, None, (51, 52, 53)), 1, 0.1, "memory"))
        bench.feed(m.MoveAcknowledged("r", 1, "w0", 2))
        assert rows(bench.iterate(r=54)) == ["r@1"]

    @pytest.mark.parametrize("is_parked", [False, True])
    def test_a_failed_hand_off_costs_nothing_but_the_pause(self, is_parked: bool) -> None:
        """It goes on here at its next token. The reservation is cancelled, unless the target may have the sequence by now."""
        bench = parked() if is_parked else copying()
        commands = bench.feed(h.HandoffFailed("r", 1, "the link broke"))
        assert sent(commands, "x") == ([] if is_parked else [m.CancelRequest("r", 1)])
        assert ended(commands).outcome is m.MoveOutcome.FAILED
        assert deltas(commands) == []
        assert rows(commands if is_parked else bench.iterate(r=52)) == ["r@1"]

    def test_what_parks_in_an_iteration_that_fails_is_handed_over(self) -> None:
        """Nothing was computed, so what was known before it is valid; it is in no further iteration."""
        bench = copying()
        bench.feed(h.PushCaughtUp("r", 1, 1))
        commands = bench.feed(c.IterationFailed("bad luck"))
        (commit,) = only(commands, h.CommitPush)
        assert commit == h.CommitPush(KvHandoff("r", 1, 31, 50, None, (51,)), (0, 1))
        assert rows(commands) == []
        assert ended(bench.delivered("r")).outcome is m.MoveOutcome.MOVED
        bench.feed(m.MoveAcknowledged("r", 1, "x", 1))
        bench.assert_empty()

    def test_one_that_decodes_on_is_examined_and_parks_later(self) -> None:
        """A failed iteration while full blocks are copied costs the move nothing."""
        bench = copying()
        commands = bench.feed(c.IterationFailed("bad luck"))
        assert rows(commands) == ["r@1"]
        assert only(commands, h.CommitPush) == []
        bench.feed(h.PushCaughtUp("r", 1, 1))
        assert len(only(bench.iterate(r=52), h.CommitPush)) == 1

    @pytest.mark.parametrize(
        ("parked", "reason"),
        [(False, "its KV was not copied in time"), (True, "the iteration that it was in did not end in time")],
    )
    def test_every_step_has_a_bound(self, parked: bool, reason: str) -> None:
        """After it the sequence goes on here: the target is told at once, and the order answered when no block is read."""
        bench = copying()
        if parked:
            bench.feed(h.PushCaughtUp("r", 1, 1))
        assert only(bench.tick(after_s=COPIED_WITHIN_S - 1.0), h.AbortPush) == []
        commands = bench.tick(after_s=1.1)
        assert only(commands, h.AbortPush) == [h.AbortPush("r", 1)]
        assert sent(commands, "x") == [m.CancelRequest("r", 1)]
        assert sent(bench.tick(after_s=30.0), "x") == []  # no lease is renewed any more, and nothing is said twice
        assert rows(bench.iterate(r=52)) == ["r@1"]
        commands = bench.feed(h.HandoffFailed("r", 1, "called off"))
        assert (ended(commands).outcome, ended(commands).reason) == (m.MoveOutcome.FAILED, reason)
        assert rows(bench.iterate(r=53)) == ["r@1"]

    def test_a_time_in_which_nothing_could_be_heard_does_not_count(self) -> None:
        """The bound of a copy moves on by it."""
        bench = copying()
        assert only(bench.feed(m.Tick(away_s=90.0), after_s=90.0), h.AbortPush) == []
        assert len(only(bench.tick(after_s=COPIED_WITHIN_S + 0.1), h.AbortPush)) == 1

    def test_a_word_of_an_earlier_copy_parks_nothing(self) -> None:
        """Each target is asked under a number of its own, and its copy is answered under it."""
        bench = copying()
        bench.feed(h.HandoffFailed("r", 1, "the link broke"))
        commands = bench.feed(m.MoveRequest("r", 1, "planner", "y"))
        order = one(sent(commands, "y"), m.ReserveKv)
        assert order.hop == 2
        (push,) = only(bench.feed(m.KvReserved("r", 1, 0, KvTarget("y", 3, "y:2", (7, 8, 9)))), h.OpenPush)
        assert push.number == 2
        bench.feed(h.PushCaughtUp("r", 1, 1))
        assert rows(bench.iterate(r=52)) == ["r@1"]
        bench.feed(h.PushCaughtUp("r", 1, 2))
        assert len(only(bench.iterate(r=53), h.CommitPush)) == 1

    def test_a_target_without_room_changes_nothing(self) -> None:
        """Refused, with the target's reason."""
        bench = moving()
        commands = bench.feed(m.KvRefused("r", 1, 0, "x", "full"))
        assert (ended(commands).outcome, ended(commands).reason) == (m.MoveOutcome.REFUSED, "full")
        assert rows(bench.iterate(r=52)) == ["r@1"]

    def test_a_target_that_does_not_answer_is_given_up(self) -> None:
        """Its late answer changes nothing, and what it reserved ends with its lease."""
        bench = moving()
        assert ended(bench.tick(after_s=RESERVED_WITHIN_S + 0.1)).reason == "the target did not answer"
        assert bench.feed(m.KvReserved("r", 1, 0, ROOM)) == []

    def test_a_sequence_that_ends_first_takes_its_move_along(self) -> None:
        """The push is aborted, the reservation cancelled, and the order answered."""
        bench = copying(max_new=3)
        commands = bench.iterate(r=52)
        assert only(commands, h.AbortPush) == [h.AbortPush("r", 1)]
        assert sent(commands, "x") == [m.CancelRequest("r", 1)]
        assert ended(commands).outcome is m.MoveOutcome.ENDED
        bench.feed(h.HandoffFailed("r", 1, "called off"))
        bench.assert_empty()

    def test_a_cancelled_request_is_cancelled_at_the_target_too(self) -> None:
        """Either of them may have it."""
        bench = delivered()
        assert sent(bench.feed(m.CancelRequest("r", 1)), "x") == [m.CancelRequest("r", 1)]
        bench.assert_empty()

    def test_it_parks_where_it_fills_its_reservation(self) -> None:
        """Three blocks are reserved: it stops while its tokens fit them."""
        bench = copying(prompt=30, max_new=40)
        commands: list[c.WorkerCommand] = []
        for token in range(52, 90):
            commands = bench.iterate(r=token)
            if only(commands, h.CommitPush):
                break
        (commit,) = only(commands, h.CommitPush)
        assert commit.handoff.num_tokens == 48
        assert len(commit.source_block_ids) == len(ROOM.block_ids)

    def test_leases_at_the_target_are_renewed(self) -> None:
        """As those of a prompt's target."""
        bench = copying()
        assert m.RenewLeases((("r", 1),)) in sent(bench.tick(after_s=1.5), "x")

    def test_a_worker_that_must_leave_drops_what_was_delivered_without_a_word(self) -> None:
        """Its gateway has it from the target, or will."""
        bench = delivered()
        bench.feed(m.Drain("w", bench.now + 0.5))
        commands = bench.tick(after_s=1.0)
        assert deltas(commands) == []
        assert only(commands, c.Leave) == [c.Leave()]


class TestTarget:
    """What a worker does with a sequence that moves to it."""

    @staticmethod
    def arrived() -> tuple[WorkerBench, list[c.WorkerCommand]]:
        bench = WorkerBench()
        bench.feed(m.ReserveKv("r", 1, stream_of("r"), "s", 0, 40, 4, 3.0, "w0", 2))
        bench.load("r")
        handoff = KvHandoff("r", 1, 33, 50, None, (51, 52, 53))
        return bench, bench.feed(c.KvArrived(handoff, 4096, 0.25, "shm"))

    def test_the_source_is_answered_and_no_order_of_the_scheduler_counted(self, bench: WorkerBench) -> None:
        """The scheduler reconciles its view by its own numbers only."""
        commands = bench.feed(m.ReserveKv("r", 1, stream_of("r"), "s", 0, 40, 4, 3.0, "w0", 1))
        assert one(sent(commands, "w0"), m.KvReserved)
        assert bench.role.load().assignments_seen == ()

    def test_it_goes_on_at_the_next_token(self) -> None:
        """The engine learns every token of the attempt; nothing is computed again."""
        bench, commands = self.arrived()
        assert [order.token_id for order in only(commands, c.AppendToken)] == [50, 51, 52, 53]
        assert row_of(commands, "r") == (33, 1)
        (delta,) = deltas(bench.iterate(r=54))
        assert (delta.token_index, delta.token_id) == (4, 54)
        for token in range(55, 60):
            commands = bench.iterate(r=token)
        assert deltas(commands)[0].finish_reason is not None
        bench.assert_empty()

    def test_gateway_and_scheduler_are_told_until_the_gateway_answers(self) -> None:
        """With the tokens that it came with."""
        bench, commands = self.arrived()
        report = m.RequestMoved("r", 1, stream_of("r").attempt_id, "w", "w0", 2, 0, (50, 51, 52, 53))
        assert [message for message in sent(commands, "g") if not isinstance(message, m.TokenBatch)] == [report]
        assert sent(commands, "s") == [report]
        assert report in sent(bench.tick(after_s=1.5 * REPEAT_S), "g")
        bench.feed(m.MoveAcknowledged("r", 1, "w", 2))
        assert report not in sent(bench.tick(after_s=1.5 * REPEAT_S), "g")

    def test_it_is_announced_even_after_its_end_and_the_worker_waits_for_that(self) -> None:
        """The last tokens wait at the gateway for the message."""
        bench, _ = self.arrived()
        for token in range(54, 60):
            bench.iterate(r=token)
        bench.feed(m.Drain("w", bench.now + 60.0))
        commands = bench.tick(after_s=5.0)
        assert any(isinstance(message, m.RequestMoved) for message in sent(commands, "g"))
        assert only(commands, c.Leave) == []
        assert only(bench.feed(m.MoveAcknowledged("r", 1, "w", 2)), c.Leave) == [c.Leave()]

    def test_a_gateway_that_says_nothing_is_given_up(self) -> None:
        """It is gone, or has begun another attempt."""
        bench, _ = self.arrived()
        bench.tick(after_s=SILENT_AFTER_S + 1.0)
        assert not any(isinstance(each, m.RequestMoved) for each in sent(bench.tick(after_s=1.5 * REPEAT_S), "g"))

    def test_a_reservation_that_is_never_filled_fails_nobodys_request(self, bench: WorkerBench) -> None:
        """The sequence goes on at its source: its gateway is not told of a failure."""
        bench.feed(m.ReserveKv("r", 1, stream_of("r"), "s", 0, 40, 4, 3.0, "w0", 1))
        bench.load("r")
        assert deltas(bench.tick(after_s=7.0)) == []
        bench.assert_empty()

    def test_once_announced_its_failures_are_reported(self) -> None:
        """As those of any other sequence."""
        bench, _ = self.arrived()
        bench.feed(m.Drain("w", bench.now))
        assert error_delta(bench.tick(after_s=1.0)).retryable


class TestSurvey:
    """What a worker reports to a planner, and what it does for one."""

    def survey(self, bench: WorkerBench) -> m.WorkerSurveyed:
        answer = one(sent(bench.feed(m.SurveyWorker("planner", 4)), "planner"), m.WorkerSurveyed)
        assert (answer.worker_id, answer.number) == ("w", 4)
        return answer

    def test_it_names_what_decodes_here_with_its_kv(self, bench: WorkerBench) -> None:
        """Tokens with KV, all tokens, and what is left; the time of an iteration is that of late."""
        bench.decode("r")
        bench.iterate(r=51, after_s=0.25)
        answer = self.survey(bench)
        assert answer.sequences == (m.SurveyedSequence("r", 1, 31, 32, 8),)
        assert answer.step_s is not None and 0 < answer.step_s <= 0.25

    def test_what_cannot_move_now_has_no_tokens(self, bench: WorkerBench) -> None:
        """A prompt that waits; one that decodes elsewhere is not named."""
        bench.prefill("p")
        bench.in_place("r")
        assert [(each.choice_id, each.tokens) for each in self.survey(bench).sequences] == [("r", 0)]

    def test_it_says_where_a_sequence_is_going(self) -> None:
        """So that a planner that missed an order's answer, or started later, knows."""
        assert [each.target_id for each in self.survey(copying()).sequences] == ["x"]

    def test_a_request_is_given_back_to_be_computed_elsewhere(self) -> None:
        """Its gateway may retry it, its target is cancelled, and the ledger says why."""
        bench = copying()
        commands = bench.feed(m.GiveBackRequest("r", 1, "no worker has room", 1))
        error = error_delta(commands)
        assert error.retryable
        assert ledger(commands, "given_back")[0]["reason"] == "no worker has room"
        assert sent(commands, "x") == [m.CancelRequest("r", 1)]

    def test_what_another_worker_has_is_not_given_back(self) -> None:
        """Two attempts of one request would compute it twice."""
        assert delivered().feed(m.GiveBackRequest("r", 1, "late", 1)) == []

    def test_orders_of_an_earlier_term_are_refused(self, bench: WorkerBench) -> None:
        """A planner that has lost its lease does not know; an operator's orders have no term."""
        bench.decode("r")
        bench.iterate(r=51)
        bench.feed(m.GiveBackRequest("another", 1, "", 7))
        report = ended(bench.feed(m.MoveRequest("r", 1, "planner", "x", 6)))
        assert (report.outcome, report.reason) == (m.MoveOutcome.REFUSED, "the planner's term 6 is over")
        bench.feed(m.Drain("w", bench.now + 9.0, "re-shape", term=6))
        assert bench.role.state is m.MemberState.READY
        bench.feed(m.Drain("w", bench.now + 9.0, "re-shape", term=7))
        assert bench.role.state is m.MemberState.DRAINING
        assert bench.feed(m.GiveBackRequest("r", 1, "", 6)) == []
        assert len(sent(bench.feed(m.MoveRequest("r", 1, "spotwise-move-1", "x")), "x")) == 1

    def test_a_draining_worker_says_until_when_it_stays(self, bench: WorkerBench) -> None:
        """In its heartbeats, so that a planner that missed the notice learns of it."""
        assert bench.role.leaves_at_s is None
        bench.feed(m.Drain("w", 120.0))
        assert bench.role.leaves_at_s == 120.0
