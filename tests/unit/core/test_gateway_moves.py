"""The gateway follows an attempt that moves from worker to worker."""

from __future__ import annotations

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.requests.request import FinishReason
from tests.unit.core.builders import only, sent, worker_member
from tests.unit.core.gateway_bench import GatewayBench, delivered, submitted


def moved(to: str = "x", source: str = "t", hop: int = 1, *token_ids: int, epoch: int = 1) -> m.RequestMoved:
    """The target's report; the attempt had these tokens when it moved."""
    return m.RequestMoved("r", epoch, 1, to, source, hop, 0, token_ids)


def decoding() -> GatewayBench:
    """An attempt of workers `p` and `t`, with two tokens."""
    bench = GatewayBench()
    for worker_id in ("p", "t", "x", "y"):
        bench.feed(worker_member(worker_id))
    bench.open()
    bench.tokens((0, 50), worker="p")
    bench.tokens((1, 51))
    return bench


@pytest.fixture
def bench() -> GatewayBench:
    return decoding()


def test_all_that_hold_it_learn_who_has_it_now() -> None:
    """The target need not repeat itself, and the source may drop it."""
    commands = decoding().feed(moved("x", "t", 1, 50, 51))
    for worker_id in ("x", "t"):
        assert sent(commands, worker_id) == [m.MoveAcknowledged("r", 1, "x", 1)]


def test_tokens_come_from_the_target_and_its_loss_ends_the_attempt(bench: GatewayBench) -> None:
    """The source's loss does not matter any more."""
    bench.feed(moved("x", "t", 1, 50, 51))
    assert delivered(bench.tokens((2, 52), worker="x")) == [52]
    assert submitted(bench.feed(worker_member("t", state=m.MemberState.LEFT))) == []
    assert submitted(bench.feed(worker_member("x", state=m.MemberState.LEFT))) == [(2, 2, (50, 51, 52))]


def test_tokens_that_overtake_the_report_wait_for_it(bench: GatewayBench) -> None:
    assert delivered(bench.tokens((2, 52), worker="x")) == []
    last = m.TokenDelta(1, 3, 53, FinishReason.LENGTH)
    assert bench.feed(m.TokenBatch("x", (last,), 1, 2)) == []
    commands = bench.feed(moved("x", "t", 1, 50, 51))
    assert delivered(commands) == [52, 53]
    assert only(commands, g.CloseAttempts)


def test_a_lost_message_of_the_source_stalls_nobody(bench: GatewayBench) -> None:
    bench.feed(moved("x", "t", 1, 50, 51, 52, 53))
    assert delivered(bench.tokens((4, 54), worker="x")) == [52, 53, 54]


def test_late_tokens_of_the_source_count(bench: GatewayBench) -> None:
    """They are the right ones."""
    bench.feed(moved("x", "t", 1, 50, 51, 52))
    assert delivered(bench.tokens((2, 52))) == [52]
    assert delivered(bench.tokens((3, 53), worker="x")) == [53]


def test_a_source_that_decodes_on_is_told_again(bench: GatewayBench) -> None:
    """Its tokens count, and its failure does not."""
    bench.feed(moved("x", "t", 1, 50, 51))
    commands = bench.tokens((2, 52))
    assert delivered(commands) == [52]
    assert sent(commands, "t") == [m.MoveAcknowledged("r", 1, "x", 1)]
    error = m.TokenDelta(1, 3, None, FinishReason.ERROR, "the worker had to leave", retryable=True)
    assert submitted(bench.feed(m.TokenBatch("t", (error,), 1, 3))) == []


def test_a_report_is_answered_each_time_and_counts_once(bench: GatewayBench) -> None:
    """Repeated, or of a move before the latest: the worker that has it now is named."""
    bench.feed(moved("x", "t", 1, 50, 51))
    bench.feed(moved("y", "x", 2, 50, 51))
    commands = bench.feed(moved("x", "t", 1, 50, 51))
    assert sent(commands, "x") == [m.MoveAcknowledged("r", 1, "y", 2)]
    assert delivered(bench.tokens((2, 52), worker="y")) == [52]


def test_an_attempt_that_is_over_is_dropped_at_the_target(bench: GatewayBench) -> None:
    """The request ended, or has another attempt."""
    commands = bench.feed(moved("x", "t", 1, epoch=2))
    assert sent(commands, "x") == [m.AttemptsConfirmed((("r", 2),))]
    bench.feed(worker_member("t", state=m.MemberState.LEFT))
    assert sent(bench.feed(moved("x", "t", 1)), "x") == [m.AttemptsConfirmed((("r", 1),))]


def test_the_schedulers_word_may_come_after_the_move() -> None:
    """Its workers are those of before the move."""
    bench = GatewayBench()
    bench.open(workers=None)
    bench.feed(moved("x", "t", 1, 50))
    bench.assigned()
    assert delivered(bench.tokens((0, 50), worker="p")) == [50]
    assert delivered(bench.tokens((1, 51), worker="x")) == [51]
    bench.feed(worker_member("t"))
    assert submitted(bench.feed(worker_member("t", state=m.MemberState.LEFT))) == []


def test_a_schedulers_ending_is_no_worker_that_was_left(bench: GatewayBench) -> None:
    """It ends the attempt, and the scheduler gets no word meant for workers."""
    bench.feed(moved("x", "t"))
    ending = m.TokenDelta(1, 0, None, FinishReason.ERROR, "worker x did not answer the scheduler", retryable=True)
    assert sent(bench.feed(m.TokenBatch("s", (ending,))), "s") == []
