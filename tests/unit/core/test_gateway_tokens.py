"""Tokens reach the client once, in order, up to the end."""

from __future__ import annotations

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import ledger, only
from tests.unit.core.gateway_bench import GatewayBench, delivered, spoken, submitted


@pytest.fixture
def bench() -> GatewayBench:
    return GatewayBench()


class TestBeginning:
    """A request becomes an attempt, and the client is notified when it is accepted."""

    def test_a_request_is_submitted_as_its_first_attempt(self, bench: GatewayBench) -> None:
        assert bench.open("a", workers=None) == [g.SubmitAttempt("a", 1, 1, ())]
        assert bench.open("b", workers=None) == [g.SubmitAttempt("b", 1, 2, ())]
        assert bench.role.open_requests == 2

    def test_the_client_is_accepted_once_its_workers_are_found(self, bench: GatewayBench) -> None:
        """A place in the queue is no promise; a second message changes nothing."""
        bench.open(workers=None)
        assert bench.feed(m.RequestAccepted("r", 1)) == []
        assert bench.assigned() == [g.Accept("r")]
        assert bench.assigned() == []

    def test_later_attempts_are_not_accepted_again(self, bench: GatewayBench) -> None:
        bench.open()
        bench.error()
        assert bench.assigned(epoch=2) == []

    def test_a_token_that_overtook_the_assignment_replaces_it(self, bench: GatewayBench) -> None:
        """The client has seen that it is served."""
        bench.open(workers=None)
        bench.tokens((0, 50), worker="p")
        assert bench.assigned() == []

    def test_news_of_another_attempt_or_of_an_unknown_request_is_ignored(self, bench: GatewayBench) -> None:
        bench.open(workers=None)
        assert bench.feed(m.RequestAccepted("r", 2)) == []
        assert bench.feed(m.RequestAccepted("unknown", 1)) == []
        assert bench.assigned(epoch=2) == []
        assert bench.assigned("unknown") == []


class TestOrder:
    """Indexes 0, 1, 2, ... without gap or repeat."""

    def test_tokens_are_handed_on_as_they_come(self, bench: GatewayBench) -> None:
        bench.open()
        (first,) = only(bench.tokens((0, 50)), g.Deliver)
        assert (first.choice_id, first.tokens, first.finish_reason) == ("r", (m.TokenDelta(1, 0, 50),), None)
        assert delivered(bench.tokens((1, 51))) == [51]

    def test_tokens_that_overtook_the_first_wait_for_it(self, bench: GatewayBench) -> None:
        """The token worker's message may be faster than the prompt worker's; then all come at once."""
        bench.open()
        assert bench.tokens((2, 52)) == []
        assert bench.tokens((1, 51)) == []
        (delivery,) = only(bench.tokens((0, 50), worker="p"), g.Deliver)
        assert [delta.token_id for delta in delivery.tokens] == [50, 51, 52]
        assert delivered(bench.tokens((3, 53))) == [53]

    def test_an_end_that_overtook_waits_too(self, bench: GatewayBench) -> None:
        bench.open()
        assert bench.tokens((1, 51), finish=FinishReason.LENGTH) == []
        commands = bench.tokens((0, 50), worker="p")
        assert delivered(commands) == [50, 51]
        assert only(commands, g.Deliver)[0].finish_reason is FinishReason.LENGTH
        assert bench.role.open_requests == 0

    def test_duplicates_change_nothing(self, bench: GatewayBench) -> None:
        bench.open()
        bench.tokens((0, 50))
        assert bench.tokens((0, 50)) == []
        bench.tokens((2, 52))
        assert bench.tokens((2, 52)) == []
        assert delivered(bench.tokens((1, 51))) == [51, 52]

    def test_one_message_may_serve_several_requests(self, bench: GatewayBench) -> None:
        """Each request of a batch has its own delivery, in the order of the message; an unknown stream is ignored."""
        bench.open("a")
        bench.open("b")
        batch = m.TokenBatch("t", (m.TokenDelta(2, 0, 60), m.TokenDelta(1, 0, 50), m.TokenDelta(99, 0, 70)))
        commands = bench.feed(batch)
        assert [(delivery.choice_id, len(delivery.tokens)) for delivery in only(commands, g.Deliver)] == [
            ("b", 1),
            ("a", 1),
        ]

    def test_an_ending_without_a_token_that_is_no_error_delivers_nothing(self, bench: GatewayBench) -> None:
        bench.open()
        assert bench.feed(m.TokenBatch("t", (m.TokenDelta(1, 0, None, FinishReason.ABORT),))) == []
        assert bench.role.open_requests == 1


class TestEnds:
    """Every request ends exactly once, with a close for the mesh and a line in the ledger."""

    @pytest.mark.parametrize(
        ("reason", "finish"), [(FinishReason.STOP, "stopped"), (FinishReason.LENGTH, "length")], ids=str
    )
    def test_the_last_token_ends_it(self, reason: FinishReason, finish: str, bench: GatewayBench) -> None:
        """The last token closes the request as finished, so that no member has to cancel anything."""
        bench.open()
        bench.tokens((0, 50), after_s=2.0)
        bench.tokens((1, 51), after_s=0.5)
        commands = bench.tokens((2, 52), after_s=0.7, finish=reason)
        assert only(commands, g.Deliver)[0].finish_reason is reason
        assert g.CloseAttempts(m.CloseRequest("r", 1, finished=True)) in commands
        (facts,) = ledger(commands, "completed")
        assert facts == {
            "finish": finish,
            "prompt_tokens": 30,
            "output_tokens": 3,
            "attempts": 1,
            "e2e_s": pytest.approx(3.2),
            "ttft_s": pytest.approx(2.0),
            "tpot_s": pytest.approx(0.6),
        }
        assert bench.role.open_requests == 0

    def test_a_single_token_has_no_time_per_further_token(self, bench: GatewayBench) -> None:
        bench.open("a")
        (facts,) = ledger(bench.tokens((0, 50), finish=FinishReason.STOP), "completed")
        assert "ttft_s" in facts
        assert "tpot_s" not in facts
        bench.open("b")
        (facts,) = ledger(bench.feed(g.RequestClosed("b")), "completed")
        assert "ttft_s" not in facts
        assert facts["finish"] == "aborted"

    def test_nothing_is_delivered_after_the_end(self, bench: GatewayBench) -> None:
        """No token after the last is delivered, not even of the same message."""
        bench.open()
        last = m.TokenDelta(1, 0, 50, FinishReason.STOP)
        commands = bench.feed(m.TokenBatch("t", (last, m.TokenDelta(1, 1, 51))))
        assert delivered(commands) == [50]
        assert bench.tokens((1, 51)) == []
        assert bench.error() == []
        assert bench.feed(g.RequestClosed("r")) == []
        assert bench.tick(after_s=1000.0) == []

    def test_a_client_that_leaves_has_its_work_cancelled(self) -> None:
        """Before the first token, in the middle, and while an attempt is being recovered: at the workers that have it."""
        for tokens, workers in ((0, ("p", "t")), (2, ("t",))):
            bench = GatewayBench()
            bench.open()
            for index in range(tokens):
                bench.tokens((index, 50 + index))
            commands = bench.feed(g.RequestClosed("r"))
            assert spoken(commands) == [g.CloseAttempts(m.CloseRequest("r", 1, False, workers))]
            assert bench.tokens((tokens, 99)) == []
            assert bench.role.open_requests == 0
        bench = GatewayBench()
        bench.open()
        bench.error()
        assert only(bench.feed(g.RequestClosed("r")), g.CloseAttempts)[0].order == m.CloseRequest("r", 2, False)

    def test_an_error_that_no_attempt_would_escape_fails_the_request(self, bench: GatewayBench) -> None:
        bench.open()
        bench.tokens((0, 50))
        commands = bench.error(retryable=False, index=1)
        assert spoken(commands) == [
            g.Fail("r", g.FAIL_ENGINE, "broken"),
            g.CloseAttempts(m.CloseRequest("r", 1, False, ("t",))),
        ]
        (facts,) = ledger(commands, "completed")
        assert (facts["finish"], facts["output_tokens"]) == ("error", 1)

    @pytest.mark.parametrize("code", [code for code in m.RejectCode if code is not m.RejectCode.BOUND_TOO_LARGE])
    def test_a_rejected_first_attempt_fails_with_its_code(self, code: m.RejectCode, bench: GatewayBench) -> None:
        """A rejected first attempt fails with the scheduler's code and the time to retry after; a bound is sized anew."""
        bench.open(workers=None)
        commands = bench.rejected(code=code)
        assert spoken(commands) == [g.Fail("r", code.value, "no room", 1.5), g.DeleteRecord("r")]
        assert bench.role.open_requests == 0

    def test_without_a_scheduler_the_first_attempt_fails(self, bench: GatewayBench) -> None:
        bench.open(workers=None)
        commands = bench.feed(g.SubmitFailed("r", 1, "no scheduler listens"))
        assert spoken(commands)[0] == g.Fail("r", g.FAIL_NO_SCHEDULER, "no scheduler listens", 1.0)

    def test_without_a_store_it_fails_with_a_code_of_its_own(self, bench: GatewayBench) -> None:
        bench.open(workers=None)
        commands = bench.feed(g.SubmitFailed("r", 1, "no answer", store_is_away=True))
        assert spoken(commands)[0] == g.Fail("r", g.FAIL_STORE, "no answer", 1.0)

    def test_news_of_earlier_attempts_ends_nothing(self, bench: GatewayBench) -> None:
        bench.open()
        bench.error()
        assert bench.rejected(epoch=1) == []
        assert bench.feed(g.SubmitFailed("r", 1, "late")) == []
        assert bench.error(stream=1, retryable=False) == []
        assert submitted(bench.tick()) == []
        assert bench.role.open_requests == 1
