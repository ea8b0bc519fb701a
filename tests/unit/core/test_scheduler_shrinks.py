"""Requests that were sized when the mesh had larger workers."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core import messages as m
from spotwise.core.messages import RejectCode
from spotwise.core.scheduler import SchedulerLimits
from tests.unit.core.builders import only, plain_member, worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, submission

#: 4 blocks of 16 tokens, where the large request needs 90.
SMALL = worker_member("t", blocks=4)
LARGER = worker_member("t2", blocks=8)
GATEWAY = plain_member("g", m.MemberKind.GATEWAY)


def resubmitted(choice_id: str = "r", prompt: int = 50, new: int = 40) -> m.SubmitRequest:
    return replace(submission(choice_id, 2, prompt=prompt, new=new), recovering=True)


def test_one_whose_worker_is_gone_waits_for_one_as_large() -> None:
    """It was accepted: it is not rejected, however long it waits, and goes to the first worker that can hold it."""
    bench = SchedulerBench(SMALL)
    commands = bench.feed(resubmitted())
    assert only(commands, m.RequestAccepted)
    for _ in range(300):
        bench.feed(GATEWAY)
        assert only(bench.feed(SMALL, after_s=1.0), m.RequestRejected) == []
        assert only(bench.feed(m.Tick()), m.RequestRejected) == []
    assert bench.role.queued == 1
    assert bench.placements(LARGER) == [("r", "t2")]


def test_a_new_one_is_rejected() -> None:
    """Nobody has seen a token of it."""
    bench = SchedulerBench(SMALL)
    assert bench.rejection(submission(prompt=50, new=40)).code is RejectCode.NEVER_FITS


def test_the_one_that_waits_holds_up_no_other() -> None:
    """Without passing, too: what fits is placed as if it were not there, before it and behind it."""
    bench = SchedulerBench(SMALL)
    bench.feed(resubmitted())
    assert bench.placements(submission("a", prompt=10, new=10)) == [("a", "t")]
    bench.feed(SMALL)
    assert bench.placements(submission("b", prompt=10, new=10)) == [("b", "t")]
    assert bench.role.queued == 1


def test_queued_ones_whose_worker_left_wait_as_well() -> None:
    """Two were accepted while a large worker was full; it leaves. The one that fits the other worker goes there."""
    full = worker_member("t2", blocks=8, free=0)
    bench = SchedulerBench(worker_member("t", blocks=4, free=0), full)
    bench.feed(submission("large", prompt=50, new=40))
    bench.feed(submission("small"))
    bench.feed(worker_member("t2", blocks=8, free=0, state=m.MemberState.DRAINING))
    assert bench.placements(SMALL) == [("small", "t")]
    assert bench.role.queued == 1
    assert bench.placements(worker_member("t3", blocks=8)) == [("large", "t3")]


def test_once_a_worker_is_ready_only_new_ones_are_rejected() -> None:
    """While none was, nobody knew how large they would be."""
    starting = worker_member("t", blocks=4, state=m.MemberState.STARTING)
    bench = SchedulerBench(starting, limits=SchedulerLimits(max_unready_s=60.0))
    bench.feed(submission("new", prompt=50, new=40))
    bench.feed(resubmitted("running"))
    rejected = only(bench.feed(SMALL), m.RequestRejected)
    assert [each.choice_id for each in rejected] == ["new"]
    assert bench.placements(LARGER) == [("running", "t2")]
