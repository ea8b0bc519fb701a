"""What the scheduler does about silence, losses, and gateways that are done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind, MemberState, Pool
from spotwise.core.requests.request import FinishReason
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import one, only, plain_member, sent, worker_member
from tests.unit.core.scheduler_bench import (
    PROMPT,
    TOKEN,
    SchedulerBench,
    accepted,
    cancels,
    placements,
    refused,
    reserved,
    submission,
)

#: Can hold the prompt, but not the whole request, so it cannot replace a token worker.
SMALL_PROMPT = worker_member("p", Pool.PROMPT, blocks=2)
PATIENT = SchedulerLimits(reservation_timeout_s=2.0, member_timeout_s=60.0)
GATEWAY = plain_member("g", MemberKind.GATEWAY)


@pytest.fixture
def bench() -> SchedulerBench:
    return SchedulerBench()


class TestClose:
    """A gateway is done with a request."""

    def test_an_unfinished_request_is_cancelled_on_both_workers(self, bench: SchedulerBench) -> None:
        bench.assign()
        assert cancels(bench.feed(m.CloseRequest("r", 1, finished=False))) == [("p", "r", 1), ("t", "r", 1)]
        assert bench.role.live == 0

    def test_one_worker_with_both_parts_gets_one_cancellation(self) -> None:
        bench = SchedulerBench(TOKEN)
        bench.assign()
        assert cancels(bench.feed(m.CloseRequest("r", 1, finished=False))) == [("t", "r", 1)]

    def test_a_finished_request_is_only_forgotten(self, bench: SchedulerBench) -> None:
        bench.assign()
        assert bench.feed(m.CloseRequest("r", 1, finished=True)) == []
        assert bench.role.live == 0

    def test_a_queued_request_just_leaves_the_queue(self) -> None:
        bench = SchedulerBench(worker_member("t", blocks=3, free=0))
        bench.feed(submission())
        assert bench.feed(m.CloseRequest("r", 1, finished=False)) == []
        assert (bench.role.queued, bench.role.live) == (0, 0)

    def test_a_grant_after_the_close_is_cancelled(self, bench: SchedulerBench) -> None:
        """The reservation does not stand until its lease runs out."""
        bench.feed(submission())
        assert cancels(bench.feed(m.CloseRequest("r", 1, finished=False))) == [("p", "r", 1), ("t", "r", 1)]
        assert cancels(bench.feed(reserved())) == [("t", "r", 1)]

    def test_a_close_of_an_earlier_attempt_leaves_the_newer_one(self, bench: SchedulerBench) -> None:
        bench.feed(submission(epoch=2))
        assert bench.feed(m.CloseRequest("r", 1, finished=False)) == []
        assert bench.role.live == 1

    def test_an_unknown_unfinished_request_is_cancelled_at_the_workers_that_its_gateway_knows(self) -> None:
        """A scheduler that is no more had assigned it to these; one of them is no more either."""
        bench = SchedulerBench(PROMPT, TOKEN, worker_member("t2"))
        assert cancels(bench.feed(m.CloseRequest("r", 3, finished=False, workers=("gone", "t")))) == [("t", "r", 3)]
        assert bench.feed(m.CloseRequest("q", 3, finished=False)) == []
        assert bench.feed(m.CloseRequest("r", 3, finished=True)) == []


class TestSilence:
    """A token worker that lives and does not answer."""

    def test_after_the_timeout_the_reservation_is_cancelled_and_another_worker_tried(self) -> None:
        """The silent worker's reservation is cancelled, and counts against it until it reports."""
        bench = SchedulerBench(PROMPT, TOKEN, worker_member("t2"), limits=PATIENT)
        assert bench.placements(submission()) == [("r", "t")]
        assert bench.feed(m.Tick(), after_s=1.9) == []
        commands = bench.feed(m.Tick(), after_s=0.2)
        assert cancels(commands) == [("t", "r", 1)]
        assert placements(commands) == [("r", "t2")]

    def test_its_late_grant_is_cancelled_and_its_late_refusal_leaves_the_request_where_it_is(self) -> None:
        """The request is in other hands now."""
        bench = SchedulerBench(PROMPT, TOKEN, worker_member("t2"), limits=PATIENT)
        bench.feed(submission())
        bench.feed(m.Tick(), after_s=2.5)
        assert cancels(bench.feed(reserved())) == [("t", "r", 1)]
        bench.feed(refused())
        assert bench.role.queued == 0
        granted = reserved(worker_id="t2", number=2)
        assert only(bench.feed(granted), m.RequestAssigned)[0].token_worker == "t2"

    def test_a_late_answer_of_a_worker_with_a_newer_order_changes_nothing(self) -> None:
        """The cancellation came between the two orders; one more would end the wanted reservation."""
        for late in (reserved(number=1), refused(number=1)):
            bench = SchedulerBench(limits=PATIENT)
            bench.feed(submission())
            bench.feed(m.Tick(), after_s=2.5)
            assert bench.feed(late) == []
            assert bench.role.queued == 0
            assert only(bench.feed(reserved(number=2)), m.StartPrefill)[0].epoch == 1

    def test_a_late_grant_while_the_request_waits_is_cancelled(self) -> None:
        """A late grant is cancelled: no order is outstanding, so no wanted reservation can be hit."""
        bench = SchedulerBench(SMALL_PROMPT, worker_member("t", blocks=3), limits=PATIENT)
        bench.feed(submission())
        bench.feed(m.Tick(), after_s=2.5)
        assert bench.role.queued == 1
        assert cancels(bench.feed(reserved())) == [("t", "r", 1)]

    def test_an_answered_reservation_does_not_time_out(self) -> None:
        """How long the prompt takes is not the scheduler's business."""
        bench = SchedulerBench(limits=PATIENT)
        bench.assign()
        assert bench.feed(m.Tick(), after_s=30.0) == []


class TestSilenceInPlace:
    """A silent worker that got a request to serve in place may be computing it."""

    def test_the_attempt_is_over_and_the_gateway_makes_another(self) -> None:
        """A worker's silence ends the attempt with a retryable error, which fences it, since it may have sent tokens."""
        bench = SchedulerBench(TOKEN, worker_member("t2", owed=5), limits=PATIENT)
        assert bench.placements(submission()) == [("r", "t")]
        assert bench.feed(m.Tick(), after_s=1.9) == []
        commands = bench.feed(m.Tick(), after_s=0.2)
        assert cancels(commands) == [("t", "r", 1)]
        assert placements(commands) == []
        batch = one(sent(commands, "g"), m.TokenBatch)
        (delta,) = batch.deltas
        assert (delta.attempt_id, delta.token_id, delta.finish_reason) == (101, None, FinishReason.ERROR)
        assert (delta.error, delta.retryable) == ("worker t did not answer the scheduler", True)
        assert bench.role.live == 0
        assert bench.placements(submission(epoch=2)) == [("r", "t2")]

    def test_so_it_is_where_the_worker_is_lost(self) -> None:
        """The loss counts as silence: the gateway was not notified of the worker and does not watch it."""
        bench = SchedulerBench(TOKEN)
        bench.feed(submission())
        commands = bench.feed(replace(TOKEN, state=MemberState.LEFT))
        assert cancels(commands) == [("t", "r", 1)]
        assert [delta.retryable for batch in only(commands, m.TokenBatch) for delta in batch.deltas] == [True]
        assert bench.role.live == 0

    def test_a_late_answer_changes_nothing_of_the_next_attempt(self) -> None:
        """The earlier one is cancelled once more; the next one's own answer counts."""
        bench = SchedulerBench(TOKEN, limits=PATIENT)
        bench.feed(submission())
        bench.feed(m.Tick(), after_s=2.5)
        bench.feed(submission(epoch=2))
        assert bench.feed(accepted(epoch=1)) == [m.Send("t", m.CancelRequest("r", 1))]
        assert sent(bench.feed(accepted(epoch=2, number=2)), "g") == [m.RequestAssigned("r", 2, "t", "t")]

    def test_an_accepted_order_does_not_time_out(self) -> None:
        """An accepted order has no timeout, since the gateway watches the worker after it."""
        bench = SchedulerBench(TOKEN, limits=PATIENT)
        bench.assign()
        assert bench.feed(m.Tick(), after_s=30.0) == []
        assert bench.feed(replace(TOKEN, state=MemberState.LEFT)) == []
        assert bench.role.live == 1

    def test_one_that_is_closed_before_the_answer_is_cancelled(self) -> None:
        """A request closed before the worker's answer is cancelled at once and again after the answer."""
        bench = SchedulerBench(TOKEN)
        bench.feed(submission())
        assert cancels(bench.feed(m.CloseRequest("r", 1, finished=False))) == [("t", "r", 1)]
        assert cancels(bench.feed(accepted())) == [("t", "r", 1)]
        assert bench.role.live == 0


class TestLostWorkers:
    """A worker leaves, falls silent or starts anew."""

    def test_a_token_worker_lost_while_reserving_is_replaced(self) -> None:
        """A late grant of the dead one is not believed."""
        bench = SchedulerBench(PROMPT, TOKEN, worker_member("t2", owed=5))
        bench.feed(submission())
        assert cancels(bench.feed(replace(TOKEN, state=MemberState.LEFT))) == [("t", "r", 1)]
        assert bench.role.queued == 1
        assert bench.placements(m.Tick()) == [("r", "t2")]
        assert only(bench.feed(reserved()), m.StartPrefill) == []

    def test_a_prompt_worker_lost_while_reserving_frees_the_reservation(self) -> None:
        """The token worker may get the request again, for another prompt worker."""
        bench = SchedulerBench(PROMPT, worker_member("p2", Pool.PROMPT, pending=5), TOKEN)
        bench.feed(submission())
        assert cancels(bench.feed(replace(PROMPT, state=MemberState.LEFT))) == [("t", "r", 1)]
        assert bench.placements(m.Tick()) == [("r", "t")]
        assert only(bench.feed(reserved(number=2)), m.RequestAssigned)[0].prompt_worker == "p2"

    def test_a_silent_worker_is_lost_and_its_requests_keep_their_order(self) -> None:
        """Requests of a silent worker return to the queue ahead of the waiting ones."""
        bench = SchedulerBench(SMALL_PROMPT, worker_member("t", blocks=6))
        for choice_id in ("a", "b", "c"):
            bench.feed(submission(choice_id))
        assert bench.role.queued == 1
        bench.feed(SMALL_PROMPT, after_s=1.0)
        # it may only have been silent, with the orders still in its inbox
        assert sorted(cancels(bench.feed(m.Tick(), after_s=1.1))) == [("t", "a", 1), ("t", "b", 1)]
        assert bench.role.queued == 3
        assert bench.placements(worker_member("t2")) == [("a", "t2"), ("b", "t2"), ("c", "t2")]

    def test_a_restarted_worker_holds_nothing_of_before(self) -> None:
        """The worker's memory follows from its new report alone, and open reservations are requested anew."""
        bench = SchedulerBench(SMALL_PROMPT, worker_member("t", blocks=3))
        bench.feed(submission("a"))
        assert bench.placements(worker_member("t", blocks=3, incarnation=2)) == [("a", "t")]

    def test_a_late_heartbeat_of_an_earlier_incarnation_changes_nothing(self) -> None:
        """A late heartbeat does not restore the memory, or the state, from before the restart."""
        bench = SchedulerBench(worker_member("t", blocks=3, free=0, incarnation=2))
        bench.feed(submission())
        assert bench.feed(worker_member("t", blocks=3, incarnation=1)) == []
        assert bench.role.queued == 1

    def test_assigned_requests_of_a_lost_worker_are_left_to_their_gateway(self, bench: SchedulerBench) -> None:
        """The gateway knows which tokens came, and submits the next attempt."""
        bench.assign()
        assert bench.feed(replace(TOKEN, state=MemberState.LEFT)) == []
        assert (bench.role.queued, bench.role.live) == (0, 1)

    def test_a_draining_worker_gets_nothing_new(self) -> None:
        """A reservation made before the drain may still be granted."""
        bench = SchedulerBench(PROMPT, TOKEN, worker_member("t2", owed=50))
        bench.feed(submission("a"))
        bench.feed(replace(TOKEN, state=MemberState.DRAINING))
        assert bench.placements(submission("b")) == [("b", "t2")]
        assert only(bench.feed(reserved("a")), m.RequestAssigned)[0].token_worker == "t"


class TestOtherMembers:
    """Gateways are watched, everyone else only noted."""

    def test_a_lost_gateway_takes_its_requests_along(self) -> None:
        """Queued, reserving or assigned; those of other gateways stay."""
        bench = SchedulerBench(worker_member("p", Pool.PROMPT, free=0), worker_member("t", blocks=9))
        bench.feed(GATEWAY)
        bench.assign("assigned")
        bench.feed(submission("reserving"))
        bench.feed(submission("other", gateway="g2"))
        bench.feed(submission("queued"))
        assert (bench.role.queued, bench.role.live) == (1, 4)
        commands = bench.feed(replace(GATEWAY, state=MemberState.LEFT))
        assert cancels(commands) == [
            ("p", "assigned", 1),
            ("t", "assigned", 1),
            ("p", "reserving", 1),
            ("t", "reserving", 1),
        ]
        assert (bench.role.queued, bench.role.live) == (0, 1)

    def test_a_gateway_that_was_only_silent_makes_another_attempt(self) -> None:
        """Assigned, reserving or queued; it would else wait for tokens that were cancelled."""
        limits = SchedulerLimits(gateway_timeout_s=2.0)
        bench = SchedulerBench(worker_member("p", Pool.PROMPT, free=0), worker_member("t", blocks=9), limits=limits)
        bench.feed(GATEWAY)
        bench.assign("assigned")
        for choice_id in ("reserving", "second", "queued"):
            bench.feed(submission(choice_id, epoch=ord(choice_id[0])))
        for worker in (PROMPT, TOKEN):
            bench.feed(worker, after_s=1.0)
        batches = only(bench.feed(m.Tick(), after_s=0.5), m.TokenBatch)
        (errors,) = zip(*(batch.deltas for batch in batches), strict=True)
        assert [error.attempt_id for error in errors] == [100 + epoch for epoch in (1, *map(ord, "rsq"))]
        assert {(error.token_id, error.finish_reason, error.retryable) for error in errors} == {
            (None, FinishReason.ERROR, True)
        }
        assert {batch.worker_id for batch in batches} == {"s"}

    def test_a_restarted_gateway_gets_nothing_of_the_streams_before(self, bench: SchedulerBench) -> None:
        bench.feed(GATEWAY)
        bench.assign()
        commands = bench.feed(replace(GATEWAY, incarnation=2))
        assert len(cancels(commands)) == 2
        assert sent(commands, "g") == []

    def test_members_of_other_kinds_are_no_workers(self, bench: SchedulerBench) -> None:
        planner = plain_member("planner", MemberKind.MIGRATION_PLANNER)
        assert bench.feed(planner) == []
        bench.assign()
        assert bench.feed(replace(planner, state=MemberState.LEFT)) == []
        assert bench.role.live == 1
