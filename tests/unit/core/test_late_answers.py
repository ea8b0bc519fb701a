"""A token worker that gets to its inbox late: scheduler and worker as they are, the test is the links between them."""

from __future__ import annotations

from typing import Any

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.core.worker import commands as c
from tests.unit.core.builders import one, only, sent, worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, submission
from tests.unit.core.worker.bench import WorkerBench, deltas

#: Can hold the prompt, but not the whole request, so it cannot replace a token worker.
PROMPT = worker_member("p", m.Pool.PROMPT, blocks=2)
WORKER = worker_member("w")


def assert_one_prefill_into_a_valid_reservation(scheduler: SchedulerBench, inbox: list[Any]) -> None:
    """After the worker's inbox and the scheduler's answers, the wanted reservation is in place on both sides."""
    worker = WorkerBench()
    commands = [command for order in inbox for command in worker.feed(order)]
    assert deltas(commands) == []
    first, second = sent(commands, "s")
    assert isinstance(first, m.KvReserved)
    assert isinstance(second, m.KvRefused)  # the record of the first is still being loaded
    assert scheduler.feed(first) == []
    assert scheduler.feed(second) == []
    assert worker.load("r") == [c.DropSequence("r@1")]
    order = one(sent(scheduler.feed(WORKER), "w"), m.ReserveKv)
    third = one(sent(worker.feed(order), "s"), m.KvReserved)
    started = scheduler.feed(third)
    assert [start.target for start in only(started, m.StartPrefill)] == [third.target]
    assert only(started, m.RequestAssigned) == [m.RequestAssigned("r", 1, "p", "w")]
    assert sent(started, "w") == []
    assert worker.role.load().waiting_for_kv == 1
    worker.load("r")
    assert only(worker.arrive("r"), m.TokenBatch) == []
    assert deltas(worker.iterate(r=51))[0].token_index == 1


def test_a_worker_with_two_orders_meanwhile_serves_the_request() -> None:
    """Longer busy than a reservation may take: it finds the order, its cancellation and the next order."""
    scheduler = SchedulerBench(PROMPT, WORKER, limits=SchedulerLimits(reservation_timeout_s=2.0, member_timeout_s=60.0))
    inbox = sent(scheduler.feed(submission()), "w")
    inbox += sent(scheduler.feed(m.Tick(), after_s=2.5), "w")
    assert [type(order) for order in inbox] == [m.ReserveKv, m.CancelRequest, m.ReserveKv]
    assert_one_prefill_into_a_valid_reservation(scheduler, inbox)


def test_a_worker_that_was_given_up_and_comes_back_serves_the_request() -> None:
    """A worker given up after too long a silence is the only one there, and gets the next order upon its first heartbeat."""
    scheduler = SchedulerBench(PROMPT, WORKER, limits=SchedulerLimits(reservation_timeout_s=60.0, member_timeout_s=2.0))
    inbox = sent(scheduler.feed(submission()), "w")
    scheduler.feed(PROMPT, after_s=2.0)
    inbox += sent(scheduler.feed(m.Tick(), after_s=0.5), "w")
    assert scheduler.role.queued == 1
    inbox += sent(scheduler.feed(WORKER), "w")
    assert [type(order) for order in inbox] == [m.ReserveKv, m.CancelRequest, m.ReserveKv]
    assert_one_prefill_into_a_valid_reservation(scheduler, inbox)
