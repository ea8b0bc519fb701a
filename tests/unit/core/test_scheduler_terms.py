"""Of several schedulers one acts, and orders in its term."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.policy import PoolPolicy
from spotwise.core.scheduler.role import SchedulerActivated, SchedulerDeactivated, SchedulerRole
from tests.unit.core.builders import only, plain_member, sent, worker_member
from tests.unit.core.scheduler_bench import PROMPT, TOKEN, SchedulerBench, accepted, reserved, submission

MIXED = worker_member("w", m.Pool.MIXED)


class StandbyBench(SchedulerBench):
    """A scheduler that stands by at first."""

    def __init__(self, *workers: m.Member, policy: PoolPolicy | None = None) -> None:
        self.now = 1000.0
        self.role = SchedulerRole("s", None, policy=policy, stands_by=True)
        for worker in workers or (PROMPT, TOKEN):
            assert self.feed(worker) == []

    def activate(self, term: int = 5, for_s: float = 1.5, after_s: float = 0.0) -> list[object]:
        self.now += after_s
        return [*self.role.handle(SchedulerActivated(term, self.now + for_s), self.now)]


def test_a_standby_answers_nothing() -> None:
    """Gateways' submissions reach every scheduler: the active one answers."""
    bench = StandbyBench()
    assert bench.feed(submission()) == []
    assert bench.feed(m.CloseRequest("other", 1, finished=False)) == []
    assert bench.feed(m.Tick(), after_s=0.2) == []
    assert bench.role.live == 0


def test_a_standby_knows_the_workers_when_it_takes_over() -> None:
    """Its first request after that is placed at once, in its term, on a worker that it has heard of while it stood by."""
    bench = StandbyBench()
    assert bench.activate() == []
    (order,) = only(bench.feed(submission()), m.ReserveKv)
    assert order.term == 5
    (start,) = only(bench.feed(reserved(number=order.assignment)), m.StartPrefill)
    assert start.term == 5
    (cancelled, _) = only(bench.feed(m.CloseRequest("r", 1, finished=False)), m.CancelRequest)
    assert cancelled.term == 5


def test_orders_about_gateways_and_home_pools_carry_the_term() -> None:
    worker = worker_member("t", gateways=(m.GatewayStreams("gone", 1, 3),))
    bench = StandbyBench(PROMPT, worker, policy=PoolPolicy(repurpose_window_s=0.1, repurpose_share=0.5))
    bench.activate(for_s=100.0)
    bench.feed(plain_member("gone", m.MemberKind.GATEWAY, incarnation=2))
    assert sent(bench.feed(worker), "t") == [m.ForgetGateway("gone", 1, 5)]


def test_a_scheduler_that_is_replaced_forgets_its_requests_without_a_message() -> None:
    """Those with workers go on there, and gateways submit the others to its successor."""
    bench = StandbyBench()
    bench.activate()
    bench.assign("assigned")
    bench.feed(submission("queued"))
    assert bench.role.live == 2
    assert bench.feed(SchedulerDeactivated()) == []
    assert (bench.role.live, bench.role.queued, bench.role.term) == (0, 0, 0)
    assert bench.feed(submission("another")) == []


def test_a_scheduler_that_acts_again_in_a_later_term_begins_without_requests() -> None:
    bench = StandbyBench()
    bench.activate(5)
    bench.feed(submission("before"))
    bench.activate(7)
    assert bench.role.live == 0
    (order,) = only(bench.feed(submission("after")), m.ReserveKv)
    assert order.term == 7


def test_events_wait_while_the_lease_may_be_over() -> None:
    """After a pause longer than the lease; in the same term they are handled in order, and nothing was missed."""
    bench = StandbyBench(MIXED)
    bench.activate()
    (start,) = only(bench.feed(submission()), m.StartPrefill)
    bench.now += 3.0
    assert bench.feed(m.Tick(away_s=3.0)) == []
    assert bench.feed(accepted(worker_id="w", number=start.assignment)) == []
    assert bench.feed(submission("later")) == []
    commands = bench.activate()
    assert [each.choice_id for each in only(commands, m.RequestAssigned)] == ["r"]
    assert [each.choice_id for each in only(commands, m.RequestAccepted)] == ["later"]


@pytest.mark.parametrize("over", [True, False], ids=["lost", "another term"])
def test_events_of_a_term_that_is_over_are_dropped(over: bool) -> None:
    """But for those that a standby hears: its view of the workers stays current."""
    bench = StandbyBench(MIXED)
    bench.activate()
    bench.now += 3.0
    bench.feed(submission())
    bench.feed(worker_member("new", m.Pool.MIXED))
    commands = [*bench.feed(SchedulerDeactivated())] if over else bench.activate(9)
    assert commands == []
    assert bench.role.live == 0
    assert "new" in bench.role.pools


def test_a_late_confirmation_confirms_nothing() -> None:
    """The process stood still between the store's answer and now."""
    bench = StandbyBench(MIXED)
    bench.activate()
    bench.now += 3.0
    bench.feed(submission())
    assert bench.activate(for_s=-0.1) == []
    assert [each.choice_id for each in only(bench.activate(), m.RequestAccepted)] == ["r"]


def test_a_scheduler_that_is_none_of_several_acts_without_a_term() -> None:
    bench = SchedulerBench()
    (order,) = only(bench.feed(submission()), m.ReserveKv)
    assert (order.term, bench.role.term) == (0, 0)
    assert replace(order, term=0) == order
