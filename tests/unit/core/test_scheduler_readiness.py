"""Requests that come while no worker is ready wait within a bound, in the midst of a change of the fleet or of a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState
from spotwise.core.messages.mesh import RejectCode, Tick
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import only, worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, submission

LIMITS = SchedulerLimits(max_unready_s=10.0, max_queue_s=60.0, max_queued=2, member_timeout_s=1e9)
GONE = worker_member("t", state=MemberState.DRAINING)


@pytest.fixture
def bench() -> SchedulerBench:
    """A scheduler whose only worker drains."""
    return SchedulerBench(GONE, limits=LIMITS)


def test_a_request_waits_for_the_first_worker(bench: SchedulerBench) -> None:
    """It is accepted, and assigned in the order of arrival as soon as a worker is ready."""
    assert len(only(bench.feed(submission("a")), m.RequestAccepted)) == 1
    bench.feed(submission("b"), after_s=9.0)
    assert bench.placements(worker_member("t2")) == [("a", "t2"), ("b", "t2")]


def test_a_request_that_waited_for_nobody_is_rejected(bench: SchedulerBench) -> None:
    """Each request waits its own time; the message says for how long no worker was ready."""
    bench.feed(submission("a"))
    bench.feed(submission("b"), after_s=4.0)
    assert bench.feed(Tick(), after_s=5.9) == []
    rejected = bench.rejection(Tick(), after_s=0.1)
    assert (rejected.choice_id, rejected.code, rejected.retry_after_s) == ("a", RejectCode.NO_WORKERS, 5.0)
    assert rejected.message == "no worker is ready to serve, for 10 s"
    assert bench.rejection(Tick(), after_s=4.0).choice_id == "b"


def test_a_request_that_was_queued_before_waits_from_the_moment_when_the_last_worker_left() -> None:
    """Its time in the queue of a full mesh does not count."""
    bench = SchedulerBench(worker_member("t", blocks=9, free=0), limits=LIMITS)
    bench.feed(submission("a"))
    bench.feed(GONE, after_s=30.0)
    assert bench.feed(Tick(), after_s=9.9) == []
    assert bench.rejection(Tick(), after_s=0.1).code is RejectCode.NO_WORKERS


def test_a_recovering_request_waits_for_room_without_bound() -> None:
    """Its client has tokens, or the promise of them: what a lost worker costs it is a pause. New ones wait within bounds."""
    bench = SchedulerBench(worker_member("t", blocks=9, free=0), limits=LIMITS)
    bench.feed(submission("a"))
    bench.feed(submission("b"))
    recovering = [replace(submission(choice_id, 2), recovering=True) for choice_id in ("c", "d")]
    assert all(len(only(bench.feed(order), m.RequestAccepted)) == 1 for order in recovering)
    assert bench.rejection(submission("e")).code is RejectCode.MESH_FULL
    rejected = only(bench.feed(Tick(), after_s=60.1), m.RequestRejected)
    assert [(each.choice_id, each.code) for each in rejected] == [
        ("a", RejectCode.QUEUE_TIMEOUT),
        ("b", RejectCode.QUEUE_TIMEOUT),
    ]
    assert only(bench.feed(Tick(), after_s=3600.0), m.RequestRejected) == []
    assert bench.placements(worker_member("t", blocks=9, free=9)) == [("c", "t"), ("d", "t")]


def test_a_scheduler_that_was_cut_off_does_not_count_that_time(bench: SchedulerBench) -> None:
    """Heartbeats of ready workers could not reach it."""
    bench.feed(submission("a"))
    assert bench.feed(Tick(away_s=30.0), after_s=30.0) == []
    assert bench.placements(worker_member("t2")) == [("a", "t2")]


def test_a_request_that_fits_no_worker_is_rejected_once_one_is_ready(bench: SchedulerBench) -> None:
    bench.feed(submission("large", prompt=1000))
    bench.feed(submission("small"))
    commands = bench.feed(worker_member("t2", blocks=9))
    assert [(each.choice_id, each.code) for each in only(commands, m.RequestRejected)] == [
        ("large", RejectCode.NEVER_FITS)
    ]
    assert bench.role.queued == 0 and bench.role.live == 1


def test_the_queue_is_bounded_while_no_worker_is_ready(bench: SchedulerBench) -> None:
    bench.feed(submission("a"))
    bench.feed(submission("b"))
    assert bench.rejection(submission("c")).code is RejectCode.MESH_FULL


def test_a_request_that_is_closed_while_it_waits_is_forgotten(bench: SchedulerBench) -> None:
    bench.feed(submission("a"))
    bench.feed(m.CloseRequest("a", 1, finished=False))
    assert bench.placements(worker_member("t2")) == []
    assert bench.role.live == 0
