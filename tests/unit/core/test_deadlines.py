"""A client's deadline at each role: an absolute time, the same in every attempt, which no pause extends."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.gateway import commands as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages import mesh as m
from spotwise.core.messages.mesh import RejectCode
from spotwise.core.scheduler.role import CLOSED_WITHIN_S
from spotwise.core.worker import commands as c
from tests.unit.core.builders import only, worker_member
from tests.unit.core.gateway_bench import GatewayBench, submitted
from tests.unit.core.scheduler_bench import SchedulerBench, cancels, submission
from tests.unit.core.worker.bench import WorkerBench

START_S = 1000.0


def received(deadline_unix_s: float) -> g.RequestReceived:
    return g.RequestReceived("r", 30, 10, deadline_unix_s)


def test_the_gateway_fails_a_request_at_its_deadline() -> None:
    """While it decodes; workers and scheduler are told as of any request that its client leaves."""
    bench = GatewayBench()
    bench.feed(received(START_S + 2.0))
    bench.assigned()
    bench.tokens((0, 50))
    assert only(bench.tick(1.9), g.Fail) == []
    commands = bench.tick(0.1)
    (failed,) = only(commands, g.Fail)
    assert (failed.code, failed.message) == (RejectCode.DEADLINE_EXCEEDED, "the deadline came after 1 tokens")
    assert only(commands, g.CloseAttempts) == [g.CloseAttempts(m.CloseRequest("r", 1, False, ("t",)))]
    assert bench.role.open_requests == 0


def test_a_request_that_was_read_for_too_long_is_never_submitted() -> None:
    """Its body came slowly: its deadline is over when it is there."""
    commands = GatewayBench().feed(received(START_S - 0.1))
    assert submitted(commands) == []
    assert len(only(commands, g.Fail)) == 1


def test_no_attempt_begins_after_the_deadline() -> None:
    """A worker's failure leads to the next attempt only while the client waits."""
    bench = GatewayBench()
    bench.feed(received(START_S + 2.0))
    bench.assigned()
    assert [epoch for epoch, _, _ in submitted(bench.error(after_s=1.0))] == [2]
    commands = bench.error(stream=2, after_s=1.0) + bench.tick(0.5)
    assert submitted(commands) == []
    assert [failed.code for failed in only(commands, g.Fail)] == [RejectCode.DEADLINE_EXCEEDED]


def test_a_rejection_for_the_deadline_is_final() -> None:
    """The scheduler's clock may be the faster one: the gateway makes no further attempt, in whatever epoch."""
    bench = GatewayBench()
    bench.feed(received(START_S + 50.0))
    bench.assigned()
    bench.error()
    commands = bench.rejected(epoch=2, code=RejectCode.DEADLINE_EXCEEDED)
    assert [failed.code for failed in only(commands, g.Fail)] == [RejectCode.DEADLINE_EXCEEDED]


def test_a_pause_of_the_gateway_extends_no_deadline() -> None:
    bench = GatewayBench()
    bench.feed(received(START_S + 2.0))
    assert len(only(bench.feed(m.Tick(away_s=30.0), 30.0), g.Fail)) == 1


def test_the_scheduler_rejects_a_queued_request_at_its_deadline() -> None:
    """And one that comes too late at once; another one, without a deadline, waits on."""
    bench = SchedulerBench(worker_member("t", blocks=9, free=0))
    bench.feed(replace(submission("a"), deadline_unix_s=START_S + 5.0))
    bench.feed(submission("b"))
    assert only(bench.feed(m.Tick(), 1.9), m.RequestRejected) == []
    bench.feed(worker_member("t", blocks=9, free=0), 1.5)
    rejected = bench.rejection(m.Tick(), 1.6)
    assert (rejected.choice_id, rejected.code, rejected.retry_after_s) == ("a", RejectCode.DEADLINE_EXCEEDED, None)
    late = bench.rejection(replace(submission("c"), deadline_unix_s=bench.now))
    assert (late.choice_id, late.code) == ("c", RejectCode.DEADLINE_EXCEEDED)
    assert bench.role.queued == 1


def test_the_scheduler_forgets_what_a_silent_gateway_does_not_close() -> None:
    """An assigned request is the gateway's to end; some seconds later the scheduler cancels it."""
    bench = SchedulerBench()
    bench.feed(replace(submission(), deadline_unix_s=START_S + 1.0))
    assert bench.role.live == 1
    role = bench.role
    role.handle(m.Tick(), START_S + 1.0)
    assert role.live == 1
    commands = role.handle(m.Tick(), START_S + 1.0 + CLOSED_WITHIN_S)
    assert role.live == 0
    assert ("t", "r", 1) in cancels(commands)


def test_a_worker_drops_a_sequence_that_is_overdue_before_its_prefill() -> None:
    bench = WorkerBench()
    bench.start("r")
    commands = bench.load("r", deadline_unix_s=START_S)
    assert only(commands, c.RunIteration) == []
    assert only(commands, c.DropSequence) == [c.DropSequence("r@1")]
    assert bench.role.is_empty
    assert bench.pool.free_blocks == bench.pool.num_blocks


def test_a_worker_drops_a_reservation_at_its_deadline() -> None:
    """While it waits for its KV, however often its lease is renewed; the gateway is not asked for another attempt."""
    bench = WorkerBench()
    bench.reserve("r")
    bench.load("r", deadline_unix_s=START_S + 2.0)
    bench.feed(m.RenewLeases((("r", 1),)), 1.9)
    assert not bench.role.is_empty
    commands = bench.tick(0.2)
    assert only(commands, h.ForgetKv) == [h.ForgetKv("r")]
    assert only(commands, m.TokenBatch) == []
    assert bench.role.is_empty


def test_a_prompt_worker_cancels_the_reservation_of_an_overdue_prompt() -> None:
    """A message to the token worker, whose own clock may be late."""
    bench = WorkerBench()
    bench.start("r")
    bench.load("r", deadline_unix_s=START_S + 2.0)
    commands = bench.tick(2.1)
    assert m.Send("t", m.CancelRequest("r", 1)) in commands
