"""The gateway knows in which numerics class a request's tokens were computed, and counts each crossing once."""

from __future__ import annotations

import pytest

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import CrossingKind
from tests.unit.core.builders import AMX, DOT, ledger, only
from tests.unit.core.gateway_bench import GatewayBench

A, B = DOT.name, AMX.name


def classes(commands: list[g.GatewayCommand]) -> list[tuple[str, ...]]:
    """Return the classes in the records of the submitted attempts."""
    return [order.numerics_classes for order in only(commands, g.SubmitAttempt)]


def crossings(commands: list[g.GatewayCommand]) -> list[CrossingKind]:
    """Return the crossings that are counted."""
    return [each.kind for each in only(commands, g.CountCrossing)]


@pytest.fixture
def bench() -> GatewayBench:
    bench = GatewayBench()
    bench.open()
    return bench


def test_tokens_of_one_class_cross_nothing(bench: GatewayBench) -> None:
    commands = bench.tokens((0, 50), worker="p", numerics_class=A) + bench.tokens((1, 51), numerics_class=A)
    assert crossings(commands) == []
    assert classes(bench.error(index=2)) == [(A,)]


def test_a_recovery_in_another_class_is_counted_with_its_first_token(bench: GatewayBench) -> None:
    """Not with its assignment, of which no token may come; the ledger has it, too."""
    bench.tokens((0, 50), worker="p", numerics_class=A)
    bench.error(index=1)
    assert crossings(bench.assigned(epoch=2, workers=("w", "w"))) == []
    commands = bench.tokens((1, 51), (2, 52), stream=2, worker="w", numerics_class=B)
    assert crossings(commands) == [CrossingKind.RECOVERY]
    (facts,) = ledger(commands, "crossed")
    assert facts == {"by": "recovery", "from_class": A, "to_class": B, "tokens": 1}
    assert classes(bench.error(stream=2, index=3)) == [(A, B)]


def test_a_hand_off_into_another_class_is_counted_once(bench: GatewayBench) -> None:
    """Also where the token worker's tokens are here first."""
    assert crossings(bench.tokens((1, 51), (2, 52), numerics_class=B)) == []
    assert crossings(bench.tokens((0, 50), worker="p", numerics_class=A)) == [CrossingKind.HAND_OFF]
    assert crossings(bench.tokens((3, 53), numerics_class=B)) == []
    assert classes(bench.error(index=4)) == [(A, B)]


def test_a_move_into_another_class_is_counted_once(bench: GatewayBench) -> None:
    """Tokens that the source had and the target brings, since its own messages are lost, are the source's."""
    bench.feed(m.RequestMoved("r", 1, 1, "t2", "t", 1, 0, (50, 51), A))
    commands = bench.tokens((2, 52), worker="t2", numerics_class=B)
    assert [delta.token_id for order in only(commands, g.Deliver) for delta in order.tokens] == [50, 51, 52]
    assert crossings(commands) == [CrossingKind.MOVE]
    assert classes(bench.error(index=3)) == [(A, B)]


def test_a_request_that_returns_crosses_twice(bench: GatewayBench) -> None:
    """Its record has each class once, that of the latest token last."""
    bench.tokens((0, 50), worker="p", numerics_class=A)
    for stream, here in ((2, B), (3, A)):
        bench.error(stream=stream - 1, index=stream - 1)
        bench.tick(after_s=1.0)
        commands = bench.tokens((stream - 1, 50 + stream), stream=stream, worker="w", numerics_class=here)
        assert crossings(commands) == [CrossingKind.RECOVERY]
    assert classes(bench.error(stream=3, index=3)) == [(B, A)]


def test_a_request_without_tokens_has_no_class(bench: GatewayBench) -> None:
    assert classes(bench.error()) == [()]
    assert bench.role.origin("r") == (None, ())


def test_another_gateways_tokens_keep_their_classes() -> None:
    bench = GatewayBench()
    commands = bench.feed(g.RequestResumed("r", 30, 3, (50, 51), numerics_classes=(A, B)))
    assert classes(commands) == [(A, B)]
    assert crossings(bench.tokens((2, 52), worker="w", numerics_class=A)) == [CrossingKind.RECOVERY]
    assert bench.role.origin("r") == (None, (B, A))


def test_a_request_for_whose_class_no_worker_comes_ends(bench: GatewayBench) -> None:
    """Its next attempts would meet the same."""
    bench.tokens((0, 50), worker="p", numerics_class=A)
    bench.error(index=1)
    bench.feed(m.RequestAccepted("r", 2))
    (failed,) = only(bench.rejected(epoch=2, code=m.RejectCode.NO_CLASS), g.Fail)
    assert failed.code == "no_class"
