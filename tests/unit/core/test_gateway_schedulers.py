"""A gateway and the scheduler that acts, when another takes over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from tests.unit.core.builders import ledger, only, plain_member, worker_member
from tests.unit.core.gateway_bench import GatewayBench, submitted

LIMITS = RecoveryLimits(submit_s=5.0)


def scheduler(member_id: str, term: int | None, incarnation: int = 1) -> m.Member:
    return replace(plain_member(member_id, m.MemberKind.CLUSTER_SCHEDULER, incarnation=incarnation), term=term)


def bench_with_scheduler() -> GatewayBench:
    """A gateway that has heard of an active scheduler, a standby and the workers."""
    bench = GatewayBench(LIMITS)
    for member in (worker_member("p"), worker_member("t"), scheduler("s0", 5), scheduler("s1", None)):
        bench.feed(member)
    return bench


@pytest.fixture
def bench() -> GatewayBench:
    """One request that is submitted."""
    made = bench_with_scheduler()
    made.open(workers=None)
    return made


def test_what_waits_is_submitted_to_the_scheduler_that_takes_over_and_nothing_else() -> None:
    """Queued requests, and those without an answer, at once; requests with workers do not notice."""
    bench = bench_with_scheduler()
    bench.open("running")
    bench.open("queued", workers=None)
    bench.feed(m.RequestAccepted("queued", 1))
    bench.open("unanswered", workers=None)
    commands = bench.feed(scheduler("s1", 6))
    assert [each.choice_id for each in only(commands, g.SubmitAttempt)] == ["queued", "unanswered"]
    assert [facts["reason"] for facts in ledger(commands, "attempt_lost")] == [
        "cluster_scheduler s1 has taken over"
    ] * 2
    assert only(bench.feed(scheduler("s1", 6)), g.SubmitAttempt) == []


def test_a_former_scheduler_that_wakes_up_changes_nothing() -> None:
    bench = bench_with_scheduler()
    bench.feed(scheduler("s1", 6))
    bench.open(workers=None)
    assert submitted(bench.feed(scheduler("s0", 5))) == []
    assert submitted(bench.feed(scheduler("s0", 5, incarnation=2))) == []


def test_a_standbys_end_restarts_no_request(bench: GatewayBench) -> None:
    bench.feed(m.RequestAccepted("r", 1))
    assert submitted(bench.feed(replace(scheduler("s1", None), state=m.MemberState.LOST))) == []
    assert submitted(bench.feed(replace(scheduler("s0", 5), state=m.MemberState.LOST))) == [(2, 2, ())]


def test_the_first_scheduler_heard_of_may_have_accepted_requests_already() -> None:
    """A gateway that has just started: what was accepted is left there."""
    bench = GatewayBench(LIMITS)
    bench.open("accepted", workers=None)
    bench.feed(m.RequestAccepted("accepted", 1))
    bench.open("unanswered", workers=None)
    commands = bench.feed(scheduler("s0", 5))
    assert [each.choice_id for each in only(commands, g.SubmitAttempt)] == ["unanswered"]


def test_a_new_request_waits_for_a_scheduler(bench: GatewayBench) -> None:
    """It is submitted again until one accepts it; the client sees no error."""
    assert only(bench.feed(g.SubmitFailed("r", 1, "no scheduler listens"), after_s=0.1), g.Fail) == []
    assert submitted(bench.tick(after_s=0.2)) == []
    assert submitted(bench.tick(after_s=0.2)) == [(2, 2, ())]
    assert only(bench.feed(g.SubmitFailed("r", 2, "no scheduler listens"), after_s=0.1), g.Fail) == []
    assert submitted(bench.feed(scheduler("s1", 6))) == [(3, 3, ())]


def test_a_new_request_waits_for_as_long_as_a_submission_may_take(bench: GatewayBench) -> None:
    (failed,) = only(bench.feed(g.SubmitFailed("r", 1, "no scheduler listens"), after_s=5.0), g.Fail)
    assert failed.code == g.FAIL_NO_SCHEDULER


def test_a_first_rejection_is_the_clients_though_the_submission_was_repeated(bench: GatewayBench) -> None:
    """A full mesh answers 429, and the gateway does not try on behind the client's back."""
    bench.feed(scheduler("s1", 6))
    (failed,) = only(bench.rejected(epoch=2, code=m.RejectCode.MESH_FULL), g.Fail)
    assert failed.code == "mesh_full"


def test_an_accepted_request_is_not_rejected_by_the_scheduler_that_takes_over(bench: GatewayBench) -> None:
    bench.feed(m.RequestAccepted("r", 1))
    bench.feed(scheduler("s1", 6))
    assert only(bench.rejected(epoch=2, code=m.RejectCode.MESH_FULL), g.Fail) == []
    assert bench.role.open_requests == 1


def test_a_submission_whose_reply_was_late_has_not_failed(bench: GatewayBench) -> None:
    """The scheduler stood still and answered by the gateway's inbox."""
    bench.feed(m.RequestAccepted("r", 1))
    assert bench.feed(g.SubmitFailed("r", 1, "no answer"), after_s=5.0) == []
    assert bench.role.open_requests == 1
