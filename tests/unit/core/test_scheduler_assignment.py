"""The conversation by which a request gets both its workers, and the queue where it waits."""

from __future__ import annotations

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Pool
from spotwise.core.messages.mesh import RejectCode
from spotwise.core.requests.record import KvTarget
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import ledger, only, sent, worker_member
from tests.unit.core.scheduler_bench import (
    PROMPT,
    TOKEN,
    SchedulerBench,
    accepted,
    cancels,
    refused,
    reserved,
    submission,
)

#: A token worker for one request of the default size at a time.
SMALL = worker_member("t", blocks=3)


def started(target: KvTarget, number: int) -> m.StartPrefill:
    """The order to compute the prompt of `submission()`."""
    stream = m.StreamRef("g", 101, 1)
    return m.StartPrefill("r", 1, stream, "s", number, 30, target, lease_s=3.0, max_new_tokens=10)


@pytest.fixture
def bench() -> SchedulerBench:
    return SchedulerBench()


class TestConversation:
    """Reserve on the token worker, then start the prefill and notify the gateway."""

    def test_an_accepted_request_is_reserved_on_its_token_worker(self) -> None:
        """The gateway is notified of the acceptance at once; the prompt worker gets no message yet."""
        commands = SchedulerBench().feed(submission())
        assert sent(commands, "g") == [m.RequestAccepted("r", 1)]
        assert sent(commands, "t") == [
            m.ReserveKv(
                "r", 1, m.StreamRef("g", 101, 1), "s", assignment=1, kv_tokens=40, max_new_tokens=10, lease_s=3.0
            )
        ]
        assert sent(commands, "p") == []

    def test_a_standing_reservation_starts_the_prefill_and_is_reported(self, bench: SchedulerBench) -> None:
        """The prompt worker learns the reserved blocks, the gateway both names, the ledger the time in the queue."""
        bench.feed(submission())
        commands = bench.feed(reserved(), after_s=0.5)
        assert sent(commands, "p") == [started(reserved().target, number=2)]
        assert sent(commands, "g") == [m.RequestAssigned("r", 1, "p", "t")]
        assert ledger(commands, "assigned") == [{"prompt_worker": "p", "token_worker": "t", "queue_s": 0.5}]
        assert (bench.role.queued, bench.role.live) == (0, 1)

    def test_one_worker_may_get_both_parts(self) -> None:
        """A mesh of token workers serves in place: nothing is reserved, and the prompt started with the first message."""
        bench = SchedulerBench(TOKEN)
        commands = bench.feed(submission())
        assert sent(commands, "t") == [started(KvTarget("t", 1, "t:2", ()), number=1)]
        assert sent(commands, "g") == [m.RequestAccepted("r", 1)]
        commands = bench.feed(accepted(), after_s=0.5)
        assert sent(commands, "t") == []
        assert sent(commands, "g") == [m.RequestAssigned("r", 1, "t", "t")]
        assert ledger(commands, "assigned") == [{"prompt_worker": "t", "token_worker": "t", "queue_s": 0.5}]
        assert (bench.role.queued, bench.role.live) == (0, 1)

    def test_both_parts_count_for_one_worker_from_the_order_on(self) -> None:
        """Until its heartbeat includes them, or shows that the order never came."""
        bench = SchedulerBench(TOKEN)
        bench.feed(submission())
        view = bench.role.pools["t"]
        assert (view.pending_prompt_tokens, view.remaining_tokens, view.free_tokens) == (30, 10, 16 * 97)
        bench.feed(accepted())
        assert (view.pending_prompt_tokens, view.remaining_tokens, view.free_tokens) == (30, 10, 16 * 97)
        bench.feed(worker_member("t", pending=20, owed=10, free=98, seen=(("s", 1),)))
        assert (view.pending_prompt_tokens, view.remaining_tokens, view.free_tokens) == (20, 10, 16 * 98)

    def test_an_order_accepted_twice_is_not_assigned_twice(self) -> None:
        bench = SchedulerBench(TOKEN)
        bench.assign()
        assert bench.feed(accepted()) == []

    def test_prompts_of_reservations_under_way_count_for_their_prompt_worker(self) -> None:
        """Two requests submitted at once go to two prompt workers."""
        bench = SchedulerBench(PROMPT, worker_member("p2", Pool.PROMPT), TOKEN)
        bench.feed(submission("a"))
        bench.feed(submission("b"))
        assert only(bench.feed(reserved("a")), m.RequestAssigned)[0].prompt_worker == "p"
        assert only(bench.feed(reserved("b", number=2)), m.RequestAssigned)[0].prompt_worker == "p2"

    def test_a_submission_delivered_twice_is_one(self, bench: SchedulerBench) -> None:
        bench.feed(submission(epoch=2))
        assert bench.feed(submission(epoch=2)) == []
        assert bench.feed(submission(epoch=1)) == []

    def test_a_reservation_granted_twice_is_not_assigned_twice(self, bench: SchedulerBench) -> None:
        """The prompt is started once, and the reservation it goes to is left alone."""
        bench.assign()
        assert bench.feed(reserved()) == []


class TestQueue:
    """First come, first served; a request for which no worker has memory waits here."""

    def test_a_later_request_never_passes_one_without_room(self) -> None:
        bench = SchedulerBench(worker_member("t", blocks=5, free=2))
        assert bench.placements(submission("large")) == []
        assert bench.placements(submission("small", prompt=1, new=1)) == []
        assert bench.role.queued == 2
        roomy = worker_member("t", blocks=5)
        assert bench.placements(roomy) == [("large", "t"), ("small", "t")]
        assert bench.role.queued == 0

    def test_the_lower_priority_number_comes_first(self) -> None:
        """Equal priorities are served in order of arrival; a refused request returns to its place."""
        bench = SchedulerBench(worker_member("t", blocks=3, free=0))
        for choice_id, priority in (("a", 0), ("late", 7), ("b", 0), ("urgent", -2), ("c", 0)):
            assert bench.placements(submission(choice_id, priority=priority)) == []
        order = []
        for number in range(1, 6):
            ((choice_id, _),) = bench.placements(worker_member("t", blocks=3, seen=(("s", number - 1),)))
            order.append(choice_id)
            if number == 1:  # refused once
                bench.feed(refused(choice_id, number=1))
            else:
                bench.feed(m.CloseRequest(choice_id, 1, finished=False))
        assert order == ["urgent", "urgent", "a", "b", "c"]
        assert bench.role.queued == 1

    def test_a_more_urgent_request_without_room_holds_up_the_others(self) -> None:
        """A request without memory also holds up earlier arrivals of lower priority; its own wait is bounded as any other's."""
        bench = SchedulerBench(worker_member("t", blocks=5, free=0))
        bench.feed(submission("small", prompt=1, new=1))
        bench.feed(submission("large", priority=-1), after_s=30.0)
        assert bench.placements(worker_member("t", blocks=5, free=2)) == []
        assert bench.rejection(m.Tick(), after_s=31.0).choice_id == "small"
        assert bench.placements(worker_member("t", blocks=5)) == [("large", "t")]

    def test_blocks_promised_and_not_yet_reported_are_not_promised_again(self) -> None:
        """Until a heartbeat includes the first request, the second finds no room."""
        bench = SchedulerBench(worker_member("t", blocks=5))
        assert bench.placements(submission("a")) == [("a", "t")]
        assert bench.placements(submission("b")) == []
        assert bench.placements(worker_member("t", blocks=5)) == []  # sent before the worker received "a"
        assert bench.placements(worker_member("t", blocks=5, free=2, seen=(("s", 1),))) == []
        assert bench.placements(worker_member("t", blocks=5, seen=(("s", 1),))) == [("b", "t")]

    def test_a_refused_request_goes_back_to_the_head_and_is_tried_upon_a_heartbeat(self) -> None:
        bench = SchedulerBench(SMALL)
        bench.feed(submission("a"))
        bench.feed(submission("b"))
        assert bench.feed(refused("a")) == []
        assert bench.role.queued == 2
        assert bench.placements(worker_member("t", blocks=3, seen=(("s", 1),))) == [("a", "t")]

    def test_a_waiting_request_is_placed_by_the_report_of_a_worker_with_memory(self) -> None:
        """Reports of workers without free memory place nothing, and a draining worker takes nothing."""
        bench = SchedulerBench(worker_member("t", blocks=3, free=0), worker_member("t2", blocks=3, free=0))
        assert bench.placements(submission()) == []
        assert bench.placements(worker_member("t", blocks=3, free=2)) == []
        assert bench.placements(worker_member("t", blocks=3, state=m.MemberState.DRAINING)) == []
        assert bench.placements(worker_member("t2", blocks=3)) == [("r", "t2")]

    def test_after_a_refusal_any_report_brings_the_request_to_another_worker(self) -> None:
        """Any report places a refused request elsewhere: that other workers had no memory is not known before it is tried."""
        bench = SchedulerBench(SMALL, worker_member("t2", blocks=3, owed=5))
        assert bench.placements(submission()) == [("r", "t")]
        bench.feed(refused())
        assert bench.placements(worker_member("t", blocks=3, free=0, seen=(("s", 1),))) == [("r", "t2")]

    def test_several_refused_requests_keep_their_order(self) -> None:
        """Whichever came first is assigned first, in whatever order the refusals arrive."""
        for order in (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")):
            bench = SchedulerBench()
            for choice_id in ("a", "b", "c"):
                bench.feed(submission(choice_id))
            for choice_id in order:
                bench.feed(refused(choice_id, number="abc".index(choice_id) + 1))
            assert bench.placements(TOKEN) == [("a", "t"), ("b", "t"), ("c", "t")]

    def test_a_refusal_of_something_else_changes_nothing(self, bench: SchedulerBench) -> None:
        """A refusal with another epoch, worker, request or order, or of an assigned one, changes nothing."""
        bench.feed(submission(epoch=2))
        for stray, holder in ((refused(epoch=1), "t"), (refused(epoch=2, worker_id="t2"), "t2"), (refused("x"), "t")):
            # a worker that answers an older order may hold a reservation that is no longer wanted
            assert cancels(bench.feed(stray)) == [(holder, stray.choice_id, stray.epoch)]
        assert bench.feed(refused(epoch=2, number=7)) == []
        assert bench.role.queued == 0
        bench.feed(reserved(epoch=2))
        assert bench.feed(refused(epoch=2)) == []
        assert (bench.role.queued, bench.role.live) == (0, 1)

    def test_closing_the_head_lets_the_next_continue(self) -> None:
        """A client that gives up at the head does not hold up the queue."""
        bench = SchedulerBench(worker_member("t", blocks=9, free=3))
        bench.feed(submission("large", prompt=100))
        bench.feed(submission("small"))
        assert bench.placements(m.CloseRequest("large", 1, finished=False)) == [("small", "t")]


class TestRejections:
    """A rejected request gets a reason and when to retry."""

    def test_no_workers(self) -> None:
        """In an empty or all-draining mesh that is configured to wait for nothing the rejection comes at once."""
        draining = worker_member("t", state=m.MemberState.DRAINING)
        rejected = SchedulerBench(draining, limits=SchedulerLimits(max_unready_s=0.0)).rejection(submission())
        assert (rejected.code, rejected.retry_after_s) == (RejectCode.NO_WORKERS, 5.0)

    def test_never_fits(self) -> None:
        """A request larger than any worker is rejected with the sizes, and not to be retried."""
        bench = SchedulerBench(worker_member("t", blocks=2), worker_member("t2", blocks=1))
        rejected = bench.rejection(submission())
        assert (rejected.code, rejected.retry_after_s) == (RejectCode.NEVER_FITS, None)
        assert "need 40 tokens" in rejected.message
        assert "more than 32" in rejected.message
        assert bench.role.live == 0

    def test_mesh_full(self) -> None:
        bench = SchedulerBench(SMALL, limits=SchedulerLimits(max_queued=1))
        bench.feed(submission("runs"))
        bench.feed(submission("waits"))
        rejected = bench.rejection(submission("too many"))
        assert (rejected.choice_id, rejected.code) == ("too many", RejectCode.MESH_FULL)
        assert rejected.retry_after_s == 1.0
        assert (bench.role.queued, bench.role.live) == (1, 2)

    def test_queue_timeout(self) -> None:
        """A wait is bounded; later arrivals keep waiting."""
        bench = SchedulerBench(worker_member("t", blocks=3, free=0), limits=SchedulerLimits(max_queue_s=10.0))
        bench.feed(submission("early"))
        bench.feed(submission("late"), after_s=5.0)
        bench.feed(worker_member("t", blocks=3, free=0), after_s=5.0)
        assert bench.feed(m.Tick()) == []
        rejected = bench.rejection(m.Tick(), after_s=0.1)
        assert (rejected.choice_id, rejected.code) == ("early", RejectCode.QUEUE_TIMEOUT)
        assert "10 s" in rejected.message
        assert (bench.role.queued, bench.role.live) == (1, 1)

    def test_the_next_in_the_queue_takes_the_place_of_one_that_timed_out(self) -> None:
        """A request too large for what is free blocks the others no longer than its time."""
        limits = SchedulerLimits(max_queue_s=1.0)
        bench = SchedulerBench(worker_member("t", blocks=9, free=3), limits=limits)
        bench.feed(submission("large", prompt=100))
        bench.feed(submission("small"), after_s=0.9)
        assert bench.placements(m.Tick(), after_s=0.2) == [("small", "t")]


class TestEpochs:
    """A higher epoch replaces a lower one."""

    def test_a_new_attempt_cancels_the_assigned_one_and_is_reserved(self, bench: SchedulerBench) -> None:
        bench.assign()
        commands = bench.feed(submission(epoch=2))
        assert cancels(commands) == [("p", "r", 1), ("t", "r", 1)]
        assert [type(message) for message in sent(commands, "t")] == [m.CancelRequest, m.ReserveKv]
        assert bench.role.live == 1

    def test_a_new_attempt_replaces_a_queued_one(self) -> None:
        bench = SchedulerBench(worker_member("t", blocks=3, free=0))
        bench.feed(submission())
        assert cancels(bench.feed(submission(epoch=2))) == []
        assert (bench.role.queued, bench.role.live) == (1, 1)

    def test_a_late_grant_to_an_earlier_attempt_is_cancelled(self, bench: SchedulerBench) -> None:
        """The newer attempt's reservation is not mistaken for it."""
        bench.feed(submission(epoch=1))
        bench.feed(submission(epoch=2))
        commands = bench.feed(reserved(epoch=1))
        assert cancels(commands) == [("t", "r", 1)]
        assert only(commands, m.StartPrefill) == []
        assert only(bench.feed(reserved(epoch=2, number=2)), m.StartPrefill)[0].epoch == 2
