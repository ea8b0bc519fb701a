"""Requests stay within their numerics class where that has room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberState, Pool
from spotwise.core.messages.numerics import Crossing, Numerics
from spotwise.core.scheduler.classes import classes_to_move_to
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import AMX, DOT, FMA, ledger, only, sent, worker_member
from tests.unit.core.scheduler_bench import SchedulerBench, accepted, reserved, submission

COUNT = PoolPolicy(break_even=False, max_pending_prompt_tokens=1000)
REFUSE = replace(COUNT, crossing=Crossing.REFUSE, max_passes=4)
LIMITS = SchedulerLimits(max_queue_s=20.0, max_unready_s=60.0, member_timeout_s=1000.0)


def mixed(name: str, numerics: Numerics = DOT, **fields: Any) -> m.Member:
    return worker_member(name, Pool.MIXED, numerics=numerics, **fields)


def recovery(name: str = "r", numerics_class: str = DOT.name, **fields: Any) -> m.SubmitRequest:
    """The next attempt of a request with tokens of a class."""
    return replace(submission(name, 2), recovering=True, numerics_class=numerics_class, **fields)


def left(member: m.Member) -> m.Member:
    return replace(member, state=MemberState.LEFT)


class TestPlacement:
    """New requests: any class, and one for both phases."""

    def test_both_phases_are_in_one_class(self) -> None:
        """Although the shortest queues are of two."""
        workers = [
            worker_member("p-dot", Pool.PROMPT, numerics=DOT, pending=10),
            worker_member("p-fma", Pool.PROMPT, numerics=FMA, pending=20),
            worker_member("t-dot", numerics=DOT, owed=900),
            worker_member("t-fma", numerics=FMA, owed=10),
        ]
        bench = SchedulerBench(*workers, policy=COUNT)
        commands = bench.feed(submission())
        (order,) = only(commands, m.ReserveKv)
        assert sent(commands, "t-fma") == [order]
        assert order.numerics_class == FMA.name
        (start,) = only(bench.feed(_grant(order, "t-fma")), m.StartPrefill)
        assert start.target.worker_id == "t-fma"
        assert [each.recipient_id for each in bench.feed(m.CloseRequest("r", 1, finished=False)) if _cancels(each)] == [
            "p-fma",
            "t-fma",
        ]

    def test_a_class_with_one_kind_of_worker_serves_in_place(self) -> None:
        """A prompt worker of one class and a token worker of another hand nothing off to one another."""
        bench = SchedulerBench(
            worker_member("p", Pool.PROMPT, numerics=DOT), worker_member("t", numerics=FMA), policy=COUNT
        )
        assert not only(bench.feed(submission()), m.ReserveKv)

    def test_a_saturated_class_is_left_to_others(self) -> None:
        bench = SchedulerBench(mixed("a", DOT, pending=1000), mixed("b", FMA), policy=COUNT)
        assert bench.placements(submission()) == [("r", "b")]

    def test_simulated_workers_are_of_every_class(self) -> None:
        bench = SchedulerBench(worker_member("s", Pool.MIXED), policy=REFUSE)
        assert bench.placements(recovery()) == [("r", "s")]


class TestRecovery:
    """Requests with tokens, where crossings are counted."""

    def test_it_stays_in_its_class_though_another_is_idle(self) -> None:
        bench = SchedulerBench(mixed("a", DOT, pending=900, owed=5000), mixed("b", FMA), policy=COUNT)
        assert bench.placements(recovery()) == [("r", "a")]

    @pytest.mark.parametrize(
        "own",
        [
            mixed("a", DOT, pending=1000),
            mixed("a", DOT, free=0),
            mixed("a", DOT, state=MemberState.DRAINING),
            mixed("a", DOT, blocks=2),
        ],
        ids=["saturated", "full", "draining", "too small"],
    )
    def test_it_crosses_where_its_class_has_no_room(self, own: m.Member) -> None:
        """The ledger says from where to where."""
        bench = SchedulerBench(own, mixed("b", FMA), policy=COUNT)
        assert bench.placements(recovery()) == [("r", "b")]
        (facts,) = ledger(bench.feed(accepted("r", 2, "b")), "assigned")
        assert (facts["from_class"], facts["to_class"]) == (DOT.name, FMA.name)

    def test_it_stays_where_no_class_has_room(self) -> None:
        """A queue is no reason to cross where the other's is as long."""
        bench = SchedulerBench(mixed("a", DOT, pending=1000), mixed("b", FMA, pending=1000), policy=COUNT)
        assert bench.placements(recovery()) == [("r", "a")]
        (facts,) = ledger(bench.feed(accepted("r", 2, "a")), "assigned")
        assert "to_class" not in facts

    def test_a_worker_that_failed_it_is_no_room(self) -> None:
        bench = SchedulerBench(mixed("a", DOT), mixed("b", FMA), policy=COUNT)
        assert bench.placements(recovery(avoid=(("a",),))) == [("r", "b")]

    def test_its_class_is_gone(self) -> None:
        """A single class is left, and it is another one."""
        bench = SchedulerBench(mixed("b", FMA), policy=COUNT)
        assert bench.placements(recovery()) == [("r", "b")]


class TestRefusal:
    """Requests with tokens, where crossings are refused."""

    @pytest.mark.parametrize("own", [mixed("a", DOT, free=0), mixed("a", DOT, blocks=2)], ids=["full", "too small"])
    def test_it_waits_for_its_class_and_holds_up_no_other(self, own: m.Member) -> None:
        bench = SchedulerBench(own, mixed("b", FMA), policy=REFUSE, limits=LIMITS)
        assert bench.placements(recovery("first")) == []
        assert bench.placements(submission("new")) == [("new", "b")]
        assert bench.placements(recovery("other", FMA.name)) == [("other", "b")]
        assert bench.placements(mixed("a2", DOT)) == [("first", "a2")]

    def test_it_waits_in_a_saturated_class(self) -> None:
        bench = SchedulerBench(mixed("a", DOT, pending=5000), mixed("b", FMA), policy=REFUSE)
        assert bench.placements(recovery()) == [("r", "a")]

    def test_it_ends_with_the_reason_where_no_worker_of_its_class_comes(self) -> None:
        """After the patience for free capacity, counted from when the last one left; time away does not count."""
        own = mixed("a", DOT, free=0)
        bench = SchedulerBench(own, mixed("b", FMA), policy=REFUSE, limits=LIMITS)
        bench.feed(recovery())
        assert not only(bench.feed(m.Tick(), after_s=100.0), m.RequestRejected)
        bench.feed(left(own))
        assert not only(bench.feed(m.Tick(), after_s=0.2), m.RequestRejected)
        assert not only(bench.feed(m.Tick(away_s=50.0), after_s=50.0), m.RequestRejected)
        assert not only(bench.feed(m.Tick(), after_s=19.0), m.RequestRejected)
        rejected = bench.rejection(m.Tick(), after_s=1.5)
        assert rejected.code is m.RejectCode.NO_CLASS and rejected.retry_after_s
        assert DOT.name in rejected.message and "SPOTWISE_CROSSING" in rejected.message
        assert bench.role.live == 0

    def test_its_wait_begins_anew_with_each_loss_of_its_class(self) -> None:
        own = mixed("a", DOT, free=0)
        bench = SchedulerBench(mixed("b", FMA), policy=REFUSE, limits=LIMITS)
        bench.feed(recovery())
        bench.feed(m.Tick(), after_s=15.0)
        bench.feed(own)
        bench.feed(m.Tick(), after_s=1.0)
        bench.feed(left(own))
        bench.feed(m.Tick(), after_s=1.0)
        assert not only(bench.feed(m.Tick(), after_s=15.0), m.RequestRejected)
        assert only(bench.feed(m.Tick(), after_s=6.0), m.RequestRejected)

    def test_an_open_bound_is_that_of_its_class(self) -> None:
        """Its gateway sizes it anew by the workers of its class, though others hold more."""
        bench = SchedulerBench(mixed("a", DOT, blocks=10), mixed("b", FMA, blocks=100), policy=REFUSE, limits=LIMITS)
        bound = recovery(max_new_tokens=1000, open_bound=True)
        assert bench.rejection(bound).code is m.RejectCode.BOUND_TOO_LARGE

    def test_hundreds_that_wait_for_a_class_are_placed_as_it_gets_room(self) -> None:
        bench = SchedulerBench(mixed("a", DOT, free=0), mixed("b", FMA), policy=REFUSE, limits=LIMITS)
        for number in range(300):
            bench.feed(recovery(f"r{number}"))
        placed = [name for name, _ in bench.placements(mixed("a", DOT, free=9))]
        assert placed == ["r0", "r1", "r2"]


def test_moves_cross_only_into_the_same_kv_and_where_that_is_counted() -> None:
    present = sorted((DOT.name, AMX.name, FMA.name))
    assert classes_to_move_to(DOT.name, present, Crossing.COUNT) == (DOT.name, AMX.name)
    assert classes_to_move_to(DOT.name, present, Crossing.REFUSE) == (DOT.name,)


def _cancels(command: object) -> bool:
    return isinstance(command, m.Send) and isinstance(command.message, m.CancelRequest)


def _grant(order: m.ReserveKv, worker_id: str) -> m.KvReserved:
    return reserved(order.choice_id, order.epoch, worker_id, number=order.assignment)
