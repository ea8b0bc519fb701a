"""Who may order what, and what begins and ends a change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.planner import commands as c
from spotwise.core.planner.plan import Plan
from spotwise.core.planner.policy import PlannerPolicy
from tests.unit.core.planner.bench import NOTICE_S, PlannerBench, notice, sequence


@pytest.fixture
def bench() -> PlannerBench:
    return PlannerBench()


def test_without_a_term_nothing_is_sent() -> None:
    """Another planner acts; this one takes over with all that it has heard."""
    bench = PlannerBench(term=None)
    bench.held["a"] = [sequence()]
    bench.drain()
    bench.pass_time(5.0)
    assert (bench.sent, bench.plans, bench.changes) == ([], [], [])
    bench.feed(c.TermHeld(9, bench.now + 100.0))
    bench.pass_time(NOTICE_S)
    assert [(name, send.message.term) for _, send in bench.orders(m.MoveRequest) if (name := send.recipient_id)] == [  # type: ignore[union-attr]
        ("a", 9)
    ]


@pytest.mark.parametrize("lost", [True, False], ids=["told", "by the clock"])
def test_a_term_that_is_over_orders_nothing(lost: bool) -> None:
    """Whether the planner hears of it or not."""
    bench = PlannerBench(term=None)
    bench.feed(c.TermHeld(5, bench.now + (100.0 if lost else 3.0)))
    bench.held["a"] = [sequence()]
    bench.drain()
    bench.pass_time(3.0)
    if lost:
        bench.feed(c.TermLost())
    bench.pass_time(NOTICE_S)
    assert bench.moves == bench.given_back == []


def test_a_plan_is_in_the_store_before_anything_is_ordered(bench: PlannerBench) -> None:
    bench.held["a"] = [sequence()]
    bench.stores = False
    bench.drain()
    bench.pass_time(NOTICE_S - 1.6)
    assert bench.moves == []
    assert 10 < len(bench.plans) < 100
    bench.stores = True
    bench.pass_time(0.6)
    assert bench.moves


@pytest.mark.parametrize("by", ["a watcher's report", "the worker's heartbeat"])
def test_each_sign_of_a_notice_is_enough(by: str, bench: PlannerBench) -> None:
    bench.held["a"] = [sequence()]
    if by == "the worker's heartbeat":
        deadline_s = bench.drain()
    else:
        deadline_s = bench.now + NOTICE_S
        bench.feed(notice("a", deadline_s))
    bench.pass_time(NOTICE_S)
    assert [(change.change, change.workers) for change in bench.changes][:1] == [(1, ("a",))]
    ((at_s, choice_id, target_id),) = bench.moves[:1]
    assert (choice_id, target_id) == ("r", "b")
    assert deadline_s - 4.0 < at_s < deadline_s - 1.0


@pytest.mark.parametrize("silent_s", [3.0, 10.0], ids=["as its loss is told", "long after"])
def test_a_worker_that_was_silent_and_is_back_leaves_as_any_other(silent_s: float, bench: PlannerBench) -> None:
    """It was taken for lost, in the same incarnation: its requests would stay until its end."""
    bench.held["a"] = [sequence()]
    worker = bench.workers.pop("a")
    bench.pass_time(silent_s)
    assert [change.workers for change in bench.changes][:1] == [("a",)]
    bench.workers["a"] = worker
    bench.pass_time(1.0)
    bench.drain()
    bench.pass_time(NOTICE_S)
    assert [(choice_id, target_id) for _, choice_id, target_id in bench.moves][:1] == [("r", "b")]


def test_a_withdrawn_notice_counts_unless_the_worker_drains() -> None:
    for drains, moves in ((False, 0), (True, 1)):
        bench = PlannerBench()
        bench.held["a"] = [sequence()]
        if drains:
            bench.drain()
        bench.feed(notice("a", bench.now + NOTICE_S))
        bench.pass_time(0.1 if not drains else 5.0)
        bench.feed(notice("a", 0.0, m.InterruptionKind.WITHDRAWN))
        bench.pass_time(NOTICE_S - 5.2)
        assert len(bench.moves) == moves


def test_a_notice_that_is_withdrawn_in_the_midst_of_a_change_ends_that(bench: PlannerBench) -> None:
    """The worker keeps what it has, and a later notice of another worker does not wait."""
    bench.held = {"a": [sequence("r")], "b": [sequence("s")]}
    bench.feed(notice("a", bench.now + NOTICE_S))
    bench.pass_time(3.0)
    bench.feed(notice("a", 0.0, m.InterruptionKind.WITHDRAWN))
    bench.drain("b", notice_s=2 * NOTICE_S)
    bench.pass_time(2 * NOTICE_S)
    assert {choice_id for _, choice_id, _ in bench.moves} == {"s"}


def test_a_notice_that_comes_again_after_its_withdrawal_counts(bench: PlannerBench) -> None:
    bench.held = {"a": [sequence("r")], "b": [sequence("s")]}
    bench.drain("b")
    bench.feed(notice("a", bench.now + NOTICE_S))
    bench.pass_time(3.0)
    bench.feed(notice("a", 0.0, m.InterruptionKind.WITHDRAWN))
    bench.pass_time(1.0)
    bench.feed(notice("a", bench.now + NOTICE_S - 4.0))
    bench.pass_time(NOTICE_S - 4.5)
    assert {choice_id for _, choice_id, _ in bench.moves} == {"r", "s"}


def test_a_deadline_that_comes_sooner_brings_the_order_forward(bench: PlannerBench) -> None:
    bench.held["a"] = [sequence()]
    bench.drain(notice_s=60.0)
    bench.pass_time(5.0)
    assert bench.moves == []
    sooner_s = bench.drain(notice_s=5.0)
    bench.pass_time(5.0)
    ((at_s, _, _),) = bench.moves[:1]
    assert sooner_s - 4.0 < at_s < sooner_s - 1.0


def test_a_successor_goes_on_with_the_plan() -> None:
    """With the next number; what a survey shows to be on its way is not ordered again."""
    first = PlannerBench()
    first.held["a"] = [sequence("r"), sequence("s")]
    first.drain()
    first.pass_time(NOTICE_S - 1.4)
    assert len(first.moves) == 2
    second = PlannerBench(term=None)
    second.now = first.now
    second.workers = dict(first.workers)
    for member in second.workers.values():
        second.feed(member)
    second.held["a"] = [sequence("r", target_id="b"), sequence("s")]
    second.feed(c.TermHeld(6, second.now + 100.0, first.plans[-1]))
    second.pass_time(1.0)
    assert {choice_id for _, choice_id, _ in second.moves} == {"s"}
    assert second.changes[0].change == first.plans[-1].change + 1


def test_a_worker_that_is_gone_or_empty_ends_the_change(bench: PlannerBench) -> None:
    """A worker that holds nothing is over once it drains, for until then it may get more."""
    bench.held["a"] = []
    bench.feed(notice("a", bench.now + NOTICE_S))
    bench.pass_time(2.0)
    assert [change.outcome for change in bench.changes] == ["began"]
    bench.drain(notice_s=NOTICE_S)
    bench.pass_time(2.0)
    assert [change.outcome for change in bench.changes] == ["began", "ended"]
    gone = PlannerBench()
    gone.held["a"] = [sequence()]
    gone.drain()
    gone.pass_time(2.0)
    gone.feed(replace(gone.workers.pop("a"), state=m.MemberState.LEFT))
    gone.pass_time(1.0)
    assert gone.changes[-1].outcome == "ended"
    assert gone.moves == []


def test_a_second_notice_in_the_midst_of_a_change_is_covered_too(bench: PlannerBench) -> None:
    """The change is abandoned for one with both, and what was ordered stays ordered."""
    bench.held = {"a": [sequence("r")], "b": [sequence("s")]}
    bench.drain("a")
    bench.pass_time(3.0)
    bench.drain("b", notice_s=NOTICE_S - 3.0)
    bench.pass_time(NOTICE_S - 3.5)
    assert {(choice_id, target_id) for _, choice_id, target_id in bench.moves} >= {("r", "c"), ("s", "c")}
    assert [change.outcome for change in bench.changes][:3] == ["began", "abandoned", "began"]


def test_moves_can_be_switched_off() -> None:
    bench = PlannerBench(PlannerPolicy(moves=False))
    bench.held["a"] = [sequence()]
    bench.drain()
    bench.pass_time(NOTICE_S)
    assert (bench.sent, bench.plans) == ([], [])


def test_a_plan_names_requests_and_targets(bench: PlannerBench) -> None:
    bench.held["a"] = [sequence()]
    deadline_s = bench.drain()
    bench.pass_time(NOTICE_S - 1.5)
    last: Plan = bench.plans[-1]
    (leave,) = last.leaves
    assert (last.term, last.change, leave.worker_id, leave.deadline_s) == (5, 1, "a", deadline_s)
    assert [(each.arrangement.choice_id, each.target_id) for each in leave.requests] == [("r@1", "b")]
