"""What the scheduler does about gateways that are gone, or only slow."""

from __future__ import annotations

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import MemberKind
from spotwise.core.scheduler.role import SchedulerLimits
from tests.unit.core.builders import plain_member, sent, worker_member
from tests.unit.core.scheduler_bench import PROMPT, TOKEN, SchedulerBench, cancels, reserved, submission

LIMITS = SchedulerLimits(member_timeout_s=2.0, gateway_timeout_s=10.0, reservation_timeout_s=2.0)
FORGET = m.ForgetGateway("g", 1)


def gateway(incarnation: int = 1) -> m.Member:
    return plain_member("g", MemberKind.GATEWAY, incarnation=incarnation)


def serving(incarnation: int = 1) -> m.Member:
    """Return the heartbeat of a worker whose tokens go to that incarnation of the gateway."""
    return worker_member("t", gateways=(m.GatewayStreams("g", incarnation, 5),))


class TestForgetting:
    """Workers drop what they decode for a gateway that is gone."""

    def test_of_an_incarnation_that_was_replaced(self) -> None:
        """A worker is ordered to forget a replaced incarnation at each report, also for requests unknown to the scheduler."""
        bench = SchedulerBench(limits=LIMITS)
        bench.feed(gateway(2))
        for _ in range(2):
            assert sent(bench.feed(serving(1)), "t") == [FORGET]
        assert sent(bench.feed(serving(2)), "t") == []

    def test_of_one_that_is_absent_for_long(self) -> None:
        """A scheduler that has just started knows no gateway yet, and waits."""
        bench = SchedulerBench(limits=LIMITS)
        assert sent(bench.feed(serving()), "t") == []
        assert sent(bench.feed(serving(), after_s=9.9), "t") == []
        assert sent(bench.feed(serving(), after_s=0.2), "t") == [FORGET]

    def test_not_of_one_that_reported_in_time(self) -> None:
        bench = SchedulerBench(limits=LIMITS)
        bench.feed(serving())
        bench.feed(gateway(), after_s=9.0)
        assert sent(bench.feed(serving(), after_s=2.0), "t") == []

    def test_not_in_time_that_the_scheduler_was_away(self) -> None:
        """The scheduler's own absence does not count as silence: it could receive nothing."""
        bench = SchedulerBench(limits=LIMITS)
        bench.feed(serving())
        bench.feed(m.Tick(away_s=30.0), after_s=30.0)
        assert sent(bench.feed(serving(), after_s=1.0), "t") == []


class TestSlowGateways:
    """A gateway that is only slow loses nothing."""

    def test_is_silent_longer_than_a_worker_may_be(self) -> None:
        """Tokens computed for the gateway meanwhile are kept, not recomputed."""
        bench = SchedulerBench(PROMPT, TOKEN, gateway(), limits=LIMITS)
        bench.assign()
        for _ in range(5):
            bench.feed(worker_member("t"), after_s=1.0)
            assert cancels(bench.feed(m.Tick(), after_s=0.9)) == []
        assert len(cancels(bench.feed(m.Tick(), after_s=1.0))) == 2


class TestTimeAway:
    """A scheduler that could receive nothing declares no gateway lost."""

    def test_neither_workers_nor_gateways_nor_orders(self) -> None:
        """The tick that comes before all that waited in its inbox finds everyone silent."""
        bench = SchedulerBench(PROMPT, TOKEN, gateway(), limits=LIMITS)
        bench.feed(submission())
        assert bench.feed(m.Tick(away_s=60.0), after_s=60.0) == []
        assert sent(bench.feed(reserved()), "p") != []

    def test_silence_counts_again_afterwards(self) -> None:
        bench = SchedulerBench(PROMPT, TOKEN, gateway(), limits=LIMITS)
        bench.feed(submission())
        bench.feed(m.Tick(away_s=60.0), after_s=60.0)
        assert cancels(bench.feed(m.Tick(), after_s=2.1)) != []
