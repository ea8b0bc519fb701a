"""When attempts come to nothing, or cost workers, the gateway gives a request up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import MAX_FRUITLESS, PROGRESS_TOKENS, RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import ledger, only, worker_member
from tests.unit.core.gateway_bench import GatewayBench

LIMITS = RecoveryLimits(recovery_s=1000.0, retry_pause_s=0.5, stall_s=5000.0, member_timeout_s=2.0)


class Bench(GatewayBench):
    """A bench that plays whole attempts. Requests have several streams, so attempts are found by request."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.attempts: dict[str, g.SubmitAttempt] = {}
        self.failures: dict[str, g.Fail] = {}
        self.incarnation = 1

    def feed(self, event: g.GatewayEvent, after_s: float = 0.0) -> list[g.GatewayCommand]:
        commands = super().feed(event, after_s)
        for attempt in only(commands, g.SubmitAttempt):
            self.attempts[attempt.choice_id] = attempt
        for failure in only(commands, g.Fail):
            self.failures[failure.choice_id] = failure
        return commands

    def worker(self, worker_id: str) -> None:
        """A new process of that id is there."""
        self.incarnation += 1
        self.feed(worker_member(worker_id, incarnation=self.incarnation))

    def place(self, choice_id: str, *workers: str) -> g.SubmitAttempt:
        """The attempt that is under way gets its workers."""
        attempt = self.attempts.pop(choice_id)
        self.feed(m.RequestAssigned(choice_id, attempt.epoch, workers[0], workers[-1]))
        return attempt

    def bring(self, attempt: g.SubmitAttempt, count: int, worker: str) -> None:
        """Deliver `count` tokens of an attempt."""
        first = len(attempt.output_token_ids)
        deltas = tuple(m.TokenDelta(attempt.attempt_id, first + number, 50) for number in range(count))
        for delta in deltas:
            self.feed(m.TokenBatch(worker, (delta,)))

    def give_back(self, attempt: g.SubmitAttempt, *suspects: str, reason: str = "the KV hand-off failed") -> None:
        delta = m.TokenDelta(attempt.attempt_id, 0, None, FinishReason.ERROR, reason, retryable=True, suspects=suspects)
        self.feed(m.TokenBatch(suspects[0] if suspects else "w", (delta,)))

    def pause(self, seconds: float = 0.6) -> None:
        """Let the time before the next attempt pass."""
        self.feed(m.Tick(), seconds)


@pytest.fixture
def bench() -> Bench:
    """One request, submitted."""
    made = Bench()
    made.open(workers=None)
    return made


class TestFruitless:
    """Attempts that workers give back."""

    def test_a_pair_that_always_fails_after_the_first_token_ends_after_five_attempts(self, bench: Bench) -> None:
        """One token an attempt is no progress; each attempt avoids what the ones before failed of."""
        for number in range(MAX_FRUITLESS):
            attempt = bench.place("r", "p", f"t{number}")
            assert attempt.avoid == tuple(("p", f"t{earlier}") for earlier in range(number))
            bench.bring(attempt, 1, "p")
            bench.give_back(attempt, "p", f"t{number}")
            bench.pause()
        failure = bench.failures["r"]
        assert failure.code == g.FAIL_NOT_RECOVERED
        assert failure.message == "the request made no progress in 5 attempts: the KV hand-off failed"

    def test_an_attempt_that_makes_progress_starts_the_count_anew(self, bench: Bench) -> None:
        """A long request may lose many attempts in its life."""
        for number in range(20):
            attempt = bench.place("r", "p", "t")
            bench.bring(attempt, PROGRESS_TOKENS if number % 3 == 2 else 1, "p")
            bench.give_back(attempt, "p", "t")
            bench.pause()
        assert bench.failures == {}

    def test_attempts_that_end_without_anybodys_fault_do_not_count(self, bench: Bench) -> None:
        """A worker that has to leave gives back all it has, again and again."""
        for _ in range(20):
            attempt = bench.place("r", "p", "t")
            bench.give_back(attempt, reason="the worker had to leave")
            bench.pause()
        assert bench.failures == {}

    def test_at_most_eight_are_avoided(self, bench: Bench) -> None:
        """At most the last eight pairs are avoided, which bounds the size of a submission."""
        for number in range(12):
            attempt = bench.place("r", "p", f"t{number}")
            bench.bring(attempt, PROGRESS_TOKENS, f"t{number}")
            bench.give_back(attempt, "p", f"t{number}")
            bench.pause()
        assert bench.attempts["r"].avoid == tuple(("p", f"t{number}") for number in range(4, 12))


class TestFelled:
    """Attempts that end with their workers."""

    def lose(self, bench: Bench, worker_id: str, how: str) -> None:
        if how == "restarts":
            bench.worker(worker_id)
        elif how == "leaves":
            bench.feed(worker_member(worker_id, incarnation=bench.incarnation, state=m.MemberState.LEFT))
        else:
            if how == "falls silent after a notice":
                bench.feed(worker_member(worker_id, incarnation=bench.incarnation, state=m.MemberState.DRAINING))
            bench.feed(m.Tick(), 2.1)

    @pytest.mark.parametrize(
        ("how", "given_up"),
        [("restarts", True), ("falls silent", True), ("leaves", False), ("falls silent after a notice", False)],
    )
    def test_the_third_worker_that_ends_without_notice_is_the_last(self, how: str, given_up: bool) -> None:
        """Only unannounced ends count: a worker with a notice or a goodbye was not felled by the request."""
        bench = Bench()
        bench.open(workers=None)
        for number in range(3):
            assert bench.failures == {}
            bench.worker(f"w{number}")
            bench.place("r", f"w{number}")
            self.lose(bench, f"w{number}", how)
            bench.pause()
        assert [failure.code for failure in bench.failures.values()] == ([g.FAIL_FELLS_WORKERS] if given_up else [])

    def test_workers_lost_by_a_request_that_makes_progress_are_nobodys_fault(self, bench: Bench) -> None:
        """On machines that come and go without notice, a long request outlives any number of them."""
        for number in range(20):
            bench.worker(f"w{number}")
            attempt = bench.place("r", f"w{number}")
            bench.bring(attempt, PROGRESS_TOKENS, f"w{number}")
            self.lose(bench, f"w{number}", "falls silent")
            bench.pause()
        assert bench.failures == {}

    def test_one_that_was_only_silent_was_not_felled(self, bench: Bench) -> None:
        """The worker returns as the same process: only the broker or this gateway was suspended."""
        for number in range(6):
            bench.worker(f"w{number}")
            bench.place("r", f"w{number}")
            self.lose(bench, f"w{number}", "falls silent")
            bench.feed(worker_member(f"w{number}", incarnation=bench.incarnation))
            bench.pause()
        assert bench.failures == {}

    def test_the_ledger_names_each_worker(self, bench: Bench) -> None:
        lost = []
        for number in range(3):
            bench.worker(f"w{number}")
            bench.place("r", f"w{number}")
            commands = bench.feed(m.Tick(), 2.1)
            lost += [entry["reason"] for entry in ledger(commands, "attempt_lost")]
            bench.pause()
        assert lost == [f"token_worker w{number} silent for 2 s" for number in range(3)]
        assert list(bench.failures) == ["r"]

    def test_engines_that_fail_with_it_alone_count_as_workers(self, bench: Bench) -> None:
        for number in range(2):
            bench.give_back(bench.place("r", f"w{number}"), f"w{number}")
            bench.pause()
        bench.worker("w2")
        assert bench.place("r", "w2").avoid == (("w0",), ("w1",))
        self.lose(bench, "w2", "restarts")
        assert bench.failures["r"].code == g.FAIL_FELLS_WORKERS

    def test_an_engine_that_fails_again_is_no_second_worker(self, bench: Bench) -> None:
        """With only one worker, which may be at fault, the request is given up for lack of progress."""
        for _ in range(MAX_FRUITLESS):
            assert bench.failures == {}
            bench.give_back(bench.place("r", "w"), "w", reason="the engine failed with this request alone")
            bench.pause()
        assert bench.failures["r"].code == g.FAIL_NOT_RECOVERED

    def test_both_workers_of_an_attempt_are_one_loss(self, bench: Bench) -> None:
        """The two workers may have been on one machine."""
        for number in range(2):
            bench.worker(f"p{number}")
            bench.worker(f"t{number}")
            bench.place("r", f"p{number}", f"t{number}")
            bench.feed(m.Tick(), 2.1)
            bench.pause()
        assert bench.failures == {}

    def test_requests_that_were_on_the_same_workers_are_tried_one_at_a_time(self) -> None:
        """After two losses any of them may be the one; each that makes progress is not, and the next has its turn."""
        bench = Bench()
        for name in "abc":
            bench.open(name, workers=None)
        for number in range(2):
            bench.worker(f"w{number}")
            for name in "abc":
                bench.place(name, f"w{number}")
            self.lose(bench, f"w{number}", "falls silent")
            bench.pause(0.0)
        bench.pause()
        assert sorted(bench.attempts) == ["a"]
        bench.bring(bench.place("a", "w"), PROGRESS_TOKENS, "w")
        bench.pause()
        assert sorted(bench.attempts) == ["b"]
        bench.worker("w3")
        bench.place("b", "w3")
        self.lose(bench, "w3", "restarts")
        assert list(bench.failures) == ["b"]
        bench.pause()
        assert sorted(bench.attempts) == ["c"]

    def test_time_that_a_suspect_waits_for_others_is_no_recovery_time(self) -> None:
        """A suspect is tried however long it waits for its turn."""
        bench = Bench()
        bench.role.limits = replace(LIMITS, recovery_s=5.0)
        for name in "ab":
            bench.open(name, workers=None)
        for number in range(2):
            bench.worker(f"w{number}")
            for name in "ab":
                bench.place(name, f"w{number}")
            self.lose(bench, f"w{number}", "restarts")
            bench.pause()
        for _ in range(60):
            bench.pause()
        assert sorted(bench.attempts) == ["a"]
        bench.bring(bench.place("a", "w"), PROGRESS_TOKENS, "w")
        bench.pause()
        attempt = bench.place("b", "w")
        bench.give_back(attempt, reason="the worker had to leave")
        assert bench.failures == {}

    def test_a_suspect_whose_client_did_not_read_waits_for_its_turn_again(self) -> None:
        """While it was parked another one was tried; deadlines of others are kept meanwhile."""
        bench = Bench()
        for name in "ab":
            bench.open(name, workers=None)
        for number in range(2):
            bench.worker(f"w{number}")
            for name in "ab":
                bench.place(name, f"w{number}")
            self.lose(bench, f"w{number}", "restarts")
            bench.pause()
        bench.bring(bench.place("a", "w"), 2, "w")
        bench.feed(g.ReaderStalled("a"))
        bench.pause()
        assert sorted(bench.attempts) == ["b"]
        bench.feed(g.ReaderCaughtUp("a"))
        bench.feed(g.RequestReceived("c", 30, 10, bench.now + 1.0))
        bench.pause(1.5)
        assert list(bench.failures) == ["c"]
        bench.bring(bench.place("b", "w"), PROGRESS_TOKENS, "w")
        bench.pause()
        assert "a" in bench.attempts
