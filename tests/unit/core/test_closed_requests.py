"""What gateway, scheduler and worker do so that nothing is held for a request that is over."""

from __future__ import annotations

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.scheduler.role import SchedulerLimits
from spotwise.core.worker import commands as c
from spotwise.core.worker.policy import Reserve, WorkerPolicy
from spotwise.core.worker.role import SCHEDULERS_REMEMBERED
from tests.unit.core.builders import only, sent, worker_member
from tests.unit.core.gateway_bench import GatewayBench
from tests.unit.core.scheduler_bench import SchedulerBench, cancels, submission
from tests.unit.core.worker.bench import HERE, WorkerBench

EVERY_S = 2.0
ASKING = WorkerPolicy(reserve=Reserve.MAX_TOKENS, prefix_caching=False, confirm_every_s=EVERY_S)
#: Members that report nothing are not what these tests are about.
LIMITS = SchedulerLimits(confirm_every_s=EVERY_S, member_timeout_s=1e6, reservation_timeout_s=1e6)


class TestGateway:
    """The gateway's side: it knows the open requests."""

    def test_it_reports_which_attempts_are_over(self) -> None:
        """Attempts are over that ended, were never here, or are earlier ones of a running request."""
        bench = GatewayBench()
        bench.open("open")
        bench.open("again")
        bench.error(stream=2)
        bench.open("closed")
        bench.feed(g.RequestClosed("closed"))
        named = (("open", 1), ("again", 1), ("again", 2), ("closed", 1), ("never", 4))
        answer = m.AttemptsConfirmed((("again", 1), ("closed", 1), ("never", 4)))
        assert bench.feed(m.ConfirmAttempts("w", named)) == [m.Send("w", answer)]

    def test_an_attempt_that_only_its_scheduler_names_is_lost(self) -> None:
        """Its worker may be gone without the gateway ever having heard of it; what workers or tokens show is not lost."""
        limits = RecoveryLimits(unheld_s=10.0, retry_pause_s=0.5)
        for assigned, lost in ((True, True), (False, False)):
            bench = GatewayBench(limits)
            bench.open(workers=None)
            bench.feed(m.RequestAccepted("r", 1))
            for _ in range(12):
                bench.feed(m.ConfirmAttempts("s", (("r", 1),), assigned=assigned), after_s=1.0)
                bench.tick()
            assert bench.role.is_open("r", 1) is not lost

    def test_a_lost_attempt_is_over_before_the_next_begins(self) -> None:
        bench = GatewayBench()
        bench.open()
        bench.error()
        bench.error(stream=2)
        assert not bench.role.is_open("r", 2)
        bench.tick(after_s=1.0)
        assert bench.role.is_open("r", 3)


class TestScheduler:
    """The scheduler's side: it drops what the gateway has closed, whichever message was lost."""

    def test_a_submission_after_its_closing_is_refused(self) -> None:
        bench = SchedulerBench()
        bench.feed(m.CloseRequest("r", 2, finished=False))
        assert bench.feed(submission(epoch=1)) == bench.feed(submission(epoch=2)) == []
        assert bench.role.live == 0
        assert bench.placements(submission(epoch=3)) == [("r", "t")]

    def test_a_submission_of_a_later_attempt_after_its_closing_is_refused(self) -> None:
        bench = SchedulerBench()
        bench.feed(submission(epoch=1))
        bench.feed(m.CloseRequest("r", 2, finished=False))
        assert bench.feed(submission(epoch=2)) == []
        assert bench.role.live == 0

    def test_an_attempt_that_is_over_at_its_gateway_is_dropped_and_cancelled(self) -> None:
        """A waiting or running request that a gateway reports over is dropped or cancelled, and its memory goes to the next."""
        bench = SchedulerBench(worker_member("t", blocks=3, free=3), limits=LIMITS)
        bench.assign("runs")
        bench.feed(submission("waits"))
        bench.feed(submission("next"))
        assert bench.role.queued == 2
        commands = bench.feed(m.Tick(), after_s=EVERY_S)
        assert sent(commands, "g") == [
            m.ConfirmAttempts("s", (("waits", 1), ("next", 1))),
            m.ConfirmAttempts("s", (("runs", 1),), assigned=True),
        ]
        bench.feed(worker_member("t", blocks=3, free=3, seen=(("s", 1),)))
        bench.feed(submission("late"))
        commands = bench.feed(m.AttemptsConfirmed((("runs", 1), ("waits", 1))))
        assert cancels(commands)[0] == ("t", "runs", 1)
        assert bench.role.live == 2

    def test_an_attempt_that_was_submitted_meanwhile_stays(self) -> None:
        """The answer was about the one before."""
        bench = SchedulerBench(limits=LIMITS)
        bench.feed(submission(epoch=1))
        bench.feed(submission(epoch=2))
        assert bench.feed(m.AttemptsConfirmed((("r", 1),))) == []
        assert bench.role.live == 1


class TestWorker:
    """A worker drops what its gateway has closed, whichever message was lost."""

    def test_an_attempt_that_is_over_at_its_gateway_is_released(self) -> None:
        """A reservation, and a prompt with it; a newer attempt stays."""
        bench = WorkerBench(policy=ASKING)
        bench.reserve("a")
        bench.reserve("b", epoch=2)
        commands = bench.tick(after_s=EVERY_S)
        assert sent(commands, "g") == [m.ConfirmAttempts("w", (("a", 1), ("b", 2)))]
        commands = bench.feed(m.AttemptsConfirmed((("a", 1), ("b", 1))))
        assert only(commands, c.DropSequence) == [c.DropSequence("a@1")]
        assert bench.role.load().waiting_for_kv == 1

    def test_a_prompt_that_is_over_gives_its_reservation_back(self) -> None:
        """The prompt worker releases the reservation of a closed attempt, so that the token worker need not confirm it."""
        bench = WorkerBench(policy=ASKING)
        bench.start("a")
        bench.tick(after_s=EVERY_S)
        commands = bench.feed(m.AttemptsConfirmed((("a", 1),)))
        assert sent(commands, "t") == [m.CancelRequest("a", 1)]

    def test_a_gateway_that_is_paused_loses_nothing(self) -> None:
        """A paused gateway's requests are kept: its silence is no report about them."""
        bench = WorkerBench(policy=ASKING)
        bench.start("a", target=HERE)
        for _ in range(20):
            assert only(bench.tick(after_s=EVERY_S), c.DropSequence) == []

    def test_schedulers_that_are_gone_for_long_are_forgotten(self) -> None:
        """Heartbeats do not grow with the number of schedulers there have ever been."""
        bench = WorkerBench()
        for number in range(3 * SCHEDULERS_REMEMBERED):
            stream = m.StreamRef("g", number)
            bench.feed(m.ReserveKv(f"r{number}", 1, stream, f"s{number:03}", 7, 10, 1, 3.0))
            bench.feed(m.ReserveKv(f"q{number}", 1, stream, "steady", number, 10, 1, 3.0))
        seen = bench.role.load().assignments_seen
        assert len(seen) == SCHEDULERS_REMEMBERED
        assert ("steady", 3 * SCHEDULERS_REMEMBERED - 1) in seen
        assert (f"s{3 * SCHEDULERS_REMEMBERED - 1:03}", 7) in seen
