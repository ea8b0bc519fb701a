"""A request that no worker can take now does not hold up the others for long, and is not starved by them either."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, submission

LIMITS = SchedulerLimits(max_queue_s=1e9, member_timeout_s=1e9, reservation_timeout_s=1e9)


def bench_of(*workers: m.Member, max_passes: int = 2) -> SchedulerBench:
    return SchedulerBench(*workers, limits=LIMITS, policy=PoolPolicy(max_passes=max_passes, break_even=False))


def large(choice_id: str = "large", priority: int = 0) -> m.SubmitRequest:
    """A request that fills the 160 tokens of a worker of ten blocks."""
    return submission(choice_id, prompt=150, priority=priority)


def half_full(worker_id: str = "t", blocks: int = 10, free: int = 6) -> m.Member:
    return worker_member(worker_id, blocks=blocks, free=free)


def test_small_requests_pass_a_large_one_a_bounded_number_of_times() -> None:
    """Then the worker drains until the large one has its turn, and the others follow in their order."""
    bench = bench_of(half_full())
    assert bench.placements(large()) == []
    assert bench.placements(submission("a")) == [("a", "t")]
    assert bench.placements(submission("b")) == [("b", "t")]
    bench.feed(half_full())
    assert bench.placements(submission("c")) == []
    assert bench.placements(half_full(free=6), after_s=9.0) == []
    assert bench.placements(half_full(free=10), after_s=9.0) == [("large", "t")]


def test_on_other_workers_they_pass_it_freely() -> None:
    """The large one keeps the worker with the most free KV; it is not passed there."""
    bench = bench_of(half_full("t1", free=6), half_full("t2", free=3), max_passes=1)
    bench.feed(large())
    assert bench.placements(submission("a")) == [("a", "t1")]
    for number in range(5):
        assert bench.placements(submission(f"b{number}")) == [(f"b{number}", "t2")]
        bench.feed(half_full("t2", free=3), after_s=9.0)


def test_a_reserved_worker_that_leaves_is_replaced() -> None:
    bench = bench_of(half_full("t1", free=6), half_full("t2", free=3), max_passes=1)
    bench.feed(large())
    bench.feed(submission("a"))
    bench.feed(worker_member("t1", blocks=10, free=6, state=m.MemberState.DRAINING), after_s=9.0)
    assert bench.placements(submission("b")) == []


def test_what_no_ready_worker_could_hold_holds_nobody_up() -> None:
    """The only large worker is away; all others are served, and the request is placed as soon as it is back."""
    away = worker_member("big", blocks=10, free=0, state=m.MemberState.DRAINING)
    bench = bench_of(worker_member("big", blocks=10, free=0), worker_member("t", blocks=4))
    bench.feed(large())
    bench.feed(away, after_s=1.0)
    for number in range(9):
        assert bench.placements(submission(f"r{number}")) == [(f"r{number}", "t")]
        bench.feed(worker_member("t", blocks=4), after_s=9.0)
    assert bench.placements(worker_member("big", blocks=10), after_s=9.0) == [("large", "big")]


def test_a_less_important_request_takes_nothing_that_a_more_important_one_could_use() -> None:
    """It passes on workers that are too small for that one, and nowhere else."""
    bench = bench_of(half_full("t1", free=6), worker_member("small", blocks=4, free=0))
    bench.feed(large(priority=-1))
    assert bench.placements(submission("a")) == []
    assert bench.placements(worker_member("small", blocks=4), after_s=9.0) == [("a", "small")]
    assert bench.placements(submission("b", priority=-1)) == [("b", "t1")]


def test_with_no_passes_the_queue_is_strictly_in_order() -> None:
    """Also past a request that no ready worker could hold."""
    bench = bench_of(half_full(), max_passes=0)
    bench.feed(large())
    assert bench.placements(submission("a")) == []


def test_a_report_of_free_kv_reaches_the_requests_behind() -> None:
    """Though the head cannot use it."""
    bench = bench_of(half_full(free=0))
    bench.feed(large())
    assert bench.placements(submission("a")) == []
    assert bench.placements(half_full(free=4), after_s=9.0) == [("a", "t")]
