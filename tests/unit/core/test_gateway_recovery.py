"""When an attempt is lost, the next one resumes at the next token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.gateway.recovery import RecoveryLimits
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import GRAMMAR_FAILS
from tests.unit.core.builders import ledger, only, plain_member, worker_member
from tests.unit.core.gateway_bench import GatewayBench, delivered, spoken, submitted

LIMITS = RecoveryLimits(recovery_s=10.0, retry_pause_s=0.5, stall_s=60.0, member_timeout_s=2.0)
PROMPT, TOKEN = worker_member("p", m.Pool.PROMPT), worker_member("t")
SCHEDULER = plain_member("s", m.MemberKind.CLUSTER_SCHEDULER)

FINAL = (m.RejectCode.DEADLINE_EXCEEDED, m.RejectCode.NO_CLASS)


def bench_with_members(*, workers: tuple[str, str] | None = ("p", "t")) -> GatewayBench:
    """One open request in a mesh of a prompt worker, a token worker and a scheduler."""
    bench = GatewayBench(LIMITS)
    for member in (PROMPT, TOKEN, SCHEDULER):
        bench.feed(member)
    bench.open(workers=workers)
    return bench


def leave(bench: GatewayBench, member: m.Member) -> list[g.GatewayCommand]:
    return bench.feed(replace(member, state=m.MemberState.LEFT))


@pytest.fixture
def bench() -> GatewayBench:
    return bench_with_members()


class TestNextAttempt:
    """The next attempt carries the tokens committed so far."""

    def test_a_retryable_error_is_followed_at_once(self, bench: GatewayBench) -> None:
        """A retryable error leads at once to an attempt of a higher epoch with its own stream, and to a ledger line."""
        bench.tokens((0, 50))
        bench.tokens((1, 51))
        commands = bench.error(index=2)
        assert spoken(commands) == [g.SubmitAttempt("r", 2, 2, (50, 51), recovering=True)]
        assert ledger(commands, "attempt_lost") == [{"reason": "broken", "tokens": 2}]
        assert delivered(bench.tokens((2, 52), stream=2)) == [52]

    def test_streams_of_earlier_attempts_are_ignored(self, bench: GatewayBench) -> None:
        """Workers of an earlier attempt may not have received its cancellation yet."""
        bench.tokens((0, 50))
        bench.error()
        assert bench.tokens((1, 99), stream=1) == []
        assert bench.error(stream=1) == []
        assert delivered(bench.tokens((1, 51), stream=2)) == [51]

    def test_tokens_that_waited_for_an_earlier_one_are_not_committed(self, bench: GatewayBench) -> None:
        """The next attempt computes them again."""
        bench.tokens((1, 51))
        assert submitted(bench.error(index=2)) == [(2, 2, ())]
        assert delivered(bench.tokens((0, 50), stream=2)) == [50]
        assert delivered(bench.tokens((1, 51), stream=2)) == [51]

    def test_attempts_are_counted_in_the_ledger(self, bench: GatewayBench) -> None:
        """Times run from the request's arrival whatever it went through."""
        bench.error(after_s=1.0)
        (facts,) = ledger(bench.tokens((0, 50), stream=2, finish=FinishReason.STOP, after_s=1.0), "completed")
        assert (facts["attempts"], facts["ttft_s"]) == (2, pytest.approx(2.0))


class TestRetries:
    """A later attempt that finds no worker is repeated, for a while."""

    def test_a_rejected_later_attempt_is_repeated_after_a_pause(self, bench: GatewayBench) -> None:
        bench.tokens((0, 50))
        bench.error()
        assert submitted(bench.rejected(epoch=2, after_s=0.1)) == []
        assert submitted(bench.tick(after_s=0.4)) == []
        assert submitted(bench.tick(after_s=0.2)) == [(3, 3, (50,))]
        assert submitted(bench.tick(after_s=0.6)) == []

    @pytest.mark.parametrize("code", [code for code in m.RejectCode if code not in FINAL])
    def test_after_recovery_s_it_fails(self, code: m.RejectCode, bench: GatewayBench) -> None:
        bench.error()
        epoch = 2
        for _ in range(30):
            commands = bench.rejected(epoch=epoch, code=code, after_s=0.1)
            if failures := only(commands, g.Fail):
                break
            bench.tick(after_s=0.5)
            epoch += 1
        (failure,) = failures
        assert (failure.code, failure.retry_after_s) == (g.FAIL_NOT_RECOVERED, 1.0)
        assert "10 s: no room" in failure.message
        assert 10.0 <= bench.now - 1000.0 < 11.0
        assert bench.role.open_requests == 0

    def test_only_the_first_retry_is_immediate(self, bench: GatewayBench) -> None:
        """Further lost attempts are repeated after a pause each, even if all are lost within one instant."""
        assert submitted(bench.error()) == [(2, 2, ())]
        commands = bench.error(stream=2)
        assert submitted(commands) == []
        assert len(ledger(commands, "attempt_lost")) == 1
        assert submitted(bench.tick(after_s=0.4)) == []
        assert submitted(bench.tick(after_s=0.2)) == [(3, 3, ())]

    def test_a_submission_that_fails_later_is_repeated(self, bench: GatewayBench) -> None:
        """A scheduler may be starting anew."""
        bench.error()
        assert only(bench.feed(g.SubmitFailed("r", 2, "no scheduler"), after_s=0.1), g.Fail) == []
        assert submitted(bench.tick(after_s=0.6)) == [(3, 3, ())]

    def test_time_in_which_an_attempt_is_held_is_no_recovery_time(self, bench: GatewayBench) -> None:
        """Two losses far apart are two pauses: in between, a scheduler or workers had the attempt."""
        bench.role.membership.timeout_s = 1e9  # this test lets minutes pass between heartbeats
        bench.error()
        bench.feed(m.RequestAccepted("r", 2), after_s=4.0)
        assert submitted(bench.error(stream=2, after_s=40.0)) == []
        assert submitted(bench.tick(after_s=0.5)) == [(3, 3, ())]
        assert only(bench.rejected(epoch=3, after_s=5.4), g.Fail) == []
        bench.tick(after_s=0.5)
        assert only(bench.rejected(epoch=4), g.Fail)[0].code == g.FAIL_NOT_RECOVERED

    def test_a_scheduler_that_takes_over_does_not_start_the_recovery_time_anew(self, bench: GatewayBench) -> None:
        """Nor does the time count in which the one before it had the attempt."""
        bench.role.membership.timeout_s = 1e9
        bench.error()
        bench.feed(m.RequestAccepted("r", 2), after_s=4.0)
        bench.feed(replace(SCHEDULER, term=1))
        assert submitted(bench.feed(replace(SCHEDULER, id="s2", term=2), after_s=40.0)) == [(3, 3, ())]
        assert only(bench.rejected(epoch=3, after_s=5.9), g.Fail) == []
        bench.tick(after_s=0.5)
        assert only(bench.rejected(epoch=4), g.Fail)[0].code == g.FAIL_NOT_RECOVERED

    def test_a_scheduler_that_takes_over_during_a_pause_adds_nothing(self, bench: GatewayBench) -> None:
        """The attempt was lost before: for how long it was held counts once."""
        bench.role.membership.timeout_s = 1e9
        bench.feed(replace(SCHEDULER, term=1))
        bench.error()
        bench.feed(m.RequestAccepted("r", 2), after_s=4.0)
        bench.error(stream=2, after_s=40.0)
        assert submitted(bench.feed(replace(SCHEDULER, id="s2", term=2))) == [(3, 3, ())]
        assert only(bench.rejected(epoch=3, after_s=5.9), g.Fail) == []
        bench.tick(after_s=0.5)
        assert only(bench.rejected(epoch=4), g.Fail)[0].code == g.FAIL_NOT_RECOVERED

    def test_an_attempt_that_nobody_held_counts_until_its_last_holder(self) -> None:
        """Its holder may have lost it long before that is noticed."""
        bench = GatewayBench(replace(LIMITS, unheld_s=8.0))
        bench.open()
        bench.error()
        bench.feed(m.RequestAccepted("r", 2), after_s=1.0)
        bench.feed(m.ConfirmAttempts("s", (("r", 2),)), after_s=30.0)
        assert submitted(bench.tick(after_s=8.5)) == []
        assert submitted(bench.tick(after_s=0.4)) == []
        assert submitted(bench.tick(after_s=0.1)) == [(3, 3, ())]
        assert only(bench.rejected(epoch=3), g.Fail)[0].code == g.FAIL_NOT_RECOVERED

    def test_an_attempt_that_is_still_to_be_submitted_is_not_unheld(self) -> None:
        """Of a crowd that lost its worker some wait here for long; begun anew, they would wait behind all others again."""
        bench = GatewayBench(replace(LIMITS, unheld_s=8.0))
        bench.open()
        bench.error()
        bench.tick(after_s=30.0)
        assert bench.role.is_open("r", 2)
        bench.feed(m.RequestAccepted("r", 2))
        bench.tick(after_s=8.0)
        assert bench.role.is_open("r", 2)
        bench.tick(after_s=0.1)
        assert not bench.role.is_open("r", 2)

    def test_only_attempts_of_accepted_requests_are_recoveries(self) -> None:
        """The others wait within the scheduler's bounds, in however many attempts."""
        bench = GatewayBench(replace(LIMITS, submit_s=5.0))
        (first,) = only(bench.open(workers=None), g.SubmitAttempt)
        bench.feed(g.SubmitFailed("r", 1, "no scheduler"), after_s=1.0)
        (second,) = only(bench.tick(after_s=0.5), g.SubmitAttempt)
        bench.feed(m.RequestAccepted("r", 2))
        (third,) = only(bench.error(stream=2), g.SubmitAttempt)
        assert [each.recovering for each in (first, second, third)] == [False, False, True]

    def test_what_fits_no_worker_for_a_while_is_tried_again(self, bench: GatewayBench) -> None:
        """The worker that held it is gone, and no other is large enough yet; for a new request that is final."""
        bench.error()
        assert only(bench.rejected(epoch=2, code=m.RejectCode.NEVER_FITS), g.Fail) == []
        (again,) = only(bench.tick(after_s=0.5), g.SubmitAttempt)
        assert (again.epoch, again.recovering) == (3, True)

    def test_an_open_bound_that_is_too_large_is_sized_anew(self) -> None:
        """Of a new request, too, which was accepted while no worker was there: at once, and then after pauses, for a while."""
        bench = GatewayBench(LIMITS)
        bench.open(workers=None)
        bench.feed(m.RequestAccepted("r", 1), after_s=20.0)
        commands = bench.rejected(epoch=1, code=m.RejectCode.BOUND_TOO_LARGE, after_s=20.0)
        assert only(commands, g.Fail) == []
        assert submitted(commands) == [(2, 2, ())]
        for number in range(3, 22):
            commands = bench.rejected(epoch=number - 1, code=m.RejectCode.BOUND_TOO_LARGE)
            assert only(commands, g.Fail) == []
            assert submitted(bench.tick(after_s=0.5)) == [(number, number, ())]
        (failed,) = only(bench.rejected(epoch=21, code=m.RejectCode.BOUND_TOO_LARGE, after_s=0.5), g.Fail)
        assert failed.code == g.FAIL_NOT_RECOVERED

    def test_a_token_starts_the_recovery_time_anew(self, bench: GatewayBench) -> None:
        """An attempt that got on was a recovery."""
        bench.error()
        bench.tokens((0, 50), stream=2, after_s=9.0)
        commands = bench.error(stream=2, after_s=9.0)
        assert submitted(commands) == [(3, 3, (50,))]

    def test_tokens_of_a_lost_attempt_are_ignored_during_the_pause(self, bench: GatewayBench) -> None:
        bench.error()
        bench.rejected(epoch=2, after_s=0.1)
        assert bench.tokens((0, 99), stream=2) == []


class TestLostWorkers:
    """A worker that is gone has lost its attempts."""

    @pytest.mark.parametrize("lost", [PROMPT, TOKEN], ids=["prompt", "token"])
    def test_before_the_first_token_either_worker_matters(self, lost: m.Member) -> None:
        commands = leave(bench := bench_with_members(), lost)
        assert submitted(commands) == [(2, 2, ())]
        assert lost.id in ledger(commands, "attempt_lost")[0]["reason"]
        assert bench.role.open_requests == 1

    def test_the_prompt_worker_matters_until_the_token_worker_speaks(self, bench: GatewayBench) -> None:
        """The prompt worker's first token is not the end of its part, since the KV may still be in transfer."""
        bench.tokens((0, 50), worker="p")
        assert submitted(leave(bench, PROMPT)) == [(2, 2, (50,))]

    def test_after_the_token_workers_first_token_the_prompt_worker_matters_no_more(self) -> None:
        """After the token worker's first token the loss of the prompt worker is ignored, even if that token waits
        for the prompt's.
        """
        for indexes in ((0, 1), (1,)):
            bench = bench_with_members()
            for index in indexes:
                bench.tokens((index, 50 + index), worker="t" if index else "p")
            assert leave(bench, PROMPT) == []
            assert len(submitted(leave(bench, TOKEN))) == 1

    def test_silence_is_a_loss(self, bench: GatewayBench) -> None:
        bench.feed(PROMPT, after_s=1.5)
        commands = bench.tick(after_s=1.0)
        assert submitted(commands) == [(2, 2, ())]
        assert "silent" in ledger(commands, "attempt_lost")[0]["reason"]

    def test_a_restart_is_a_loss(self) -> None:
        commands = bench_with_members().feed(replace(TOKEN, incarnation=2))
        assert submitted(commands) == [(2, 2, ())]

    def test_an_assignment_to_a_worker_lost_lately_is_lost(self) -> None:
        """The scheduler spoke before it knew."""
        bench = bench_with_members(workers=None)
        leave(bench, TOKEN)
        assert submitted(bench.assigned()) == [(2, 2, ())]

    def test_requests_on_other_workers_continue(self, bench: GatewayBench) -> None:
        """Requests on other workers continue, and so do those of members without heartbeats."""
        assert leave(bench, worker_member("t2")) == []
        bench.feed(worker_member("t2"))
        assert leave(bench, worker_member("t2")) == []
        assert bench.tick() == []

    def test_every_request_of_a_lost_worker_is_recovered(self, bench: GatewayBench) -> None:
        bench.open("b")
        assert [order.choice_id for order in only(leave(bench, TOKEN), g.SubmitAttempt)] == ["r", "b"]


class TestLostScheduler:
    """Requests that wait at a scheduler are lost with it; running ones do not need it."""

    def test_waiting_requests_are_submitted_again(self) -> None:
        bench = bench_with_members(workers=None)
        bench.feed(m.RequestAccepted("r", 1))
        assert submitted(leave(bench, SCHEDULER)) == [(2, 2, ())]

    def test_requests_that_no_scheduler_has_taken_yet_are_not(self) -> None:
        """A request to an absent scheduler gets its error on its own, so it is not retried for the loss."""
        assert leave(bench_with_members(workers=None), SCHEDULER) == []

    def test_running_requests_continue(self, bench: GatewayBench) -> None:
        """Tokens do not pass through the scheduler."""
        assert leave(bench, SCHEDULER) == []
        assert delivered(bench.tokens((0, 50))) == [50]

    def test_a_loss_between_two_attempts_is_no_further_one(self, bench: GatewayBench) -> None:
        """After an attempt was given up, further news of it changes nothing: the next one starts when it is due."""
        bench.error()
        bench.assigned(epoch=2)
        bench.error(stream=2)
        for commands in (leave(bench, TOKEN), bench.rejected(epoch=2, after_s=0.4)):
            assert commands == []
        assert submitted(bench.tick(after_s=0.2)) == [(3, 3, ())]

    def test_a_request_between_two_attempts_waits_for_its_pause(self, bench: GatewayBench) -> None:
        """A request in its pause belongs to no scheduler, so a scheduler's departure does not affect it."""
        bench.error()
        bench.rejected(epoch=2, after_s=0.1)
        assert leave(bench, SCHEDULER) == []


class TestBroker:
    """Outages of the broker: the scheduler's messages are not numbered, the workers' are."""

    def test_after_an_outage_those_start_anew_whose_workers_are_unknown(self, bench: GatewayBench) -> None:
        """The scheduler's word may be lost; an attempt that waits for its next try is left to it."""
        bench.open("queued", workers=None)
        assert submitted(bench.feed(g.BusReconnected())) == [(2, 3, ())]
        assert submitted(bench.feed(g.BusReconnected())) == []
        assert submitted(bench.tick(after_s=0.6)) == [(3, 4, ())]

    def test_an_assigned_attempt_continues_unless_tokens_are_missing(self, bench: GatewayBench) -> None:
        bench.tokens((0, 50), (1, 51))
        assert bench.feed(g.BusReconnected()) == []
        assert delivered(bench.tokens((2, 52))) == [52]


class TestStall:
    """An attempt that brings nothing for too long counts as lost."""

    def test_without_a_token_for_stall_s_the_next_attempt_follows(self, bench: GatewayBench) -> None:
        for member in (PROMPT, TOKEN):
            bench.feed(member)
        bench.tokens((0, 50), after_s=1.0)
        bench.role.membership.timeout_s = 1e9  # this test lets hours pass between heartbeats
        assert bench.tick(after_s=60.0) == []
        commands = bench.tick(after_s=0.1)
        assert submitted(commands) == [(2, 2, (50,))]
        assert "nothing came for 60 s" in ledger(commands, "attempt_lost")[0]["reason"]

    def test_every_attempt_has_stall_s_from_its_submission(self) -> None:
        bench = GatewayBench(replace(LIMITS, recovery_s=1000.0))
        bench.open()
        assert submitted(bench.error(after_s=1.0)) == [(2, 2, ())]
        bench.rejected(epoch=2, after_s=50.0)
        assert submitted(bench.tick(after_s=1.0)) == [(3, 3, ())]
        assert bench.tick(after_s=60.0) == []
        assert "nothing came" in ledger(bench.tick(after_s=0.1), "attempt_lost")[0]["reason"]

    def test_the_next_attempt_gets_its_own_time(self, bench: GatewayBench) -> None:
        """A second stall is longer than a recovery may take, and fails the request."""
        bench.role.membership.timeout_s = 1e9
        assert len(submitted(bench.tick(after_s=61.0))) == 1
        assert bench.tick(after_s=60.0) == []
        assert only(bench.tick(after_s=0.1), g.Fail)[0].code == g.FAIL_NOT_RECOVERED


class TestDrainedPromptWorker:
    """A prompt worker that was drained has handed over what it had."""

    def test_its_leaving_costs_nothing(self) -> None:
        """Even before the token worker's first token; without a drain, its prompts are lost with it."""
        for last_state, lost in ((m.MemberState.DRAINING, False), (m.MemberState.READY, True)):
            bench = GatewayBench()
            for worker_id in ("p", "t"):
                bench.feed(worker_member(worker_id))
            bench.open()
            bench.tokens((0, 50), worker="p")
            bench.feed(worker_member("p", state=last_state))
            commands = bench.feed(worker_member("p", state=m.MemberState.LEFT))
            assert bool(submitted(commands)) is lost
            assert delivered(bench.tokens((1, 51))) == ([] if lost else [51])


@pytest.mark.parametrize("code", [m.RejectCode.NO_WORKERS, m.RejectCode.MESH_FULL, m.RejectCode.QUEUE_TIMEOUT])
def test_a_request_that_goes_on_here_is_no_new_one(code: m.RejectCode) -> None:
    """It was accepted at its former gateway: a mesh that rejects its next attempt is asked again, as after a worker's loss."""
    bench = GatewayBench()
    bench.feed(g.RequestResumed("r", 30, 3, (50, 51)))
    commands = bench.rejected(epoch=4, code=code)
    assert not only(commands, g.Fail)
    assert [(epoch, tokens) for epoch, _, tokens in submitted(commands)] == [(5, (50, 51))]
    bench = GatewayBench()
    bench.feed(g.RequestResumed("r", 30, 3, (50, 51)))
    assert not only(bench.feed(g.SubmitFailed("r", 4, "no answer", store_is_away=True)), g.Fail)


def test_a_request_that_no_gateway_has_begun_is_a_new_one_here() -> None:
    """Its rejection is its client's to know."""
    bench = GatewayBench()
    bench.feed(g.RequestResumed("r", 30, 0, ()))
    assert only(bench.rejected(epoch=1), g.Fail)


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_request_that_is_taken_is_charged_once_workers_have_it(*, is_assigned: bool) -> None:
    """Its client has wanted it so; while it waits nothing was computed."""
    bench = GatewayBench()
    bench.open(workers=("p", "t") if is_assigned else None)
    (failure,) = only(bench.feed(g.RequestTaken("r")), g.Fail)
    assert failure.code == "resumed_elsewhere"
    assert failure.is_charged is is_assigned


def test_a_grammar_that_cannot_be_followed_is_charged() -> None:
    """It is its client's; an engine's error is not."""
    for error, is_charged in ((f"{GRAMMAR_FAILS}: nothing fits", True), ("broken", False)):
        bench = GatewayBench()
        bench.open()
        delta = m.TokenDelta(1, 0, None, FinishReason.ERROR, error, retryable=False)
        (failure,) = only(bench.feed(m.TokenBatch("t", (delta,))), g.Fail)
        assert failure.is_charged is is_charged
