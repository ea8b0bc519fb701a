"""Requests that were sized when the mesh had larger workers."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages import mesh as m
from spotwise.core.messages.mesh import RejectCode
from spotwise.core.scheduler.role import SchedulerLimits
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
    """Its client has not seen a token."""
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
    """While none was, their size was not known."""
    starting = worker_member("t", blocks=4, state=m.MemberState.STARTING)
    bench = SchedulerBench(starting, limits=SchedulerLimits(max_unready_s=60.0))
    bench.feed(submission("new", prompt=50, new=40))
    bench.feed(resubmitted("running"))
    rejected = only(bench.feed(SMALL), m.RequestRejected)
    assert [each.choice_id for each in rejected] == ["new"]
    assert bench.placements(LARGER) == [("running", "t2")]


class TestOpenBounds:
    """Requests without `max_tokens`: the gateway guessed how large the mesh would be."""

    OPEN = replace(submission(prompt=50, new=40), open_bound=True)

    def test_one_that_came_while_no_worker_was_ready_is_sized_anew(self) -> None:
        """It waits like others; the first worker has too little for its guess, and enough for its prompt."""
        starting = worker_member("t", blocks=4, state=m.MemberState.STARTING)
        bench = SchedulerBench(starting, limits=SchedulerLimits(max_unready_s=60.0))
        assert only(bench.feed(self.OPEN), m.RequestAccepted)
        assert bench.rejection(SMALL).code is RejectCode.BOUND_TOO_LARGE
        again = replace(self.OPEN, epoch=2, max_new_tokens=14, recovering=True)
        assert bench.placements(again) == [("r", "t")]

    def test_one_whose_worker_is_gone_is_sized_anew(self) -> None:
        """It does not wait for a worker as large: the others serve it now, with less."""
        bench = SchedulerBench(SMALL)
        assert bench.rejection(replace(self.OPEN, recovering=True)).code is RejectCode.BOUND_TOO_LARGE

    def test_queued_ones_are_sized_anew_where_the_large_worker_leaves(self) -> None:
        bench = SchedulerBench(worker_member("t", blocks=4, free=0), worker_member("t2", blocks=8, free=0))
        bench.feed(self.OPEN)
        bench.feed(submission("bounded", prompt=50, new=40))
        bench.feed(worker_member("t2", blocks=8, free=0, state=m.MemberState.DRAINING))
        bench.feed(GATEWAY)
        rejected = bench.rejection(m.Tick())
        assert (rejected.choice_id, rejected.code) == ("r", RejectCode.BOUND_TOO_LARGE)
        assert bench.role.queued == 1

    def test_a_prompt_that_fits_no_worker_is_rejected_for_good(self) -> None:
        """No bound would help; the message does not speak of a `max_tokens` that the client did not set."""
        bench = SchedulerBench(SMALL)
        rejected = bench.rejection(replace(self.OPEN, prompt_tokens=64))
        assert rejected.code is RejectCode.NEVER_FITS
        assert "64 tokens" in rejected.message and "max_tokens" not in rejected.message
