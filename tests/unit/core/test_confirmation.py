"""Tests of confirmations: the attempts that a holder confirms with their gateways."""

from __future__ import annotations

from spotwise.core.membership.confirmation import MAX_ATTEMPTS, SETTLED_S, Confirmations
from spotwise.core.messages import mesh as m

EVERY_S = 2.0


def test_each_gateway_confirms_its_own_attempts() -> None:
    """Each gateway is queried about its own attempts in the order they are held, without those that just came."""
    asking = Confirmations("w", EVERY_S)
    g, h, next_g = (
        m.StreamRef(gateway_id, 1, incarnation) for gateway_id, incarnation in (("g", 7), ("h", 7), ("g", 8))
    )
    held = [(g, ("a", 1), 8.0), (h, ("b", 3), 8.0), (g, ("c", 2), 9.0), (g, ("d", 1), 10.0 - SETTLED_S / 2)]
    assert asking.messages([*held, (next_g, ("e", 1), 8.0)], 10.0) == [
        m.Send("g", m.ConfirmAttempts("w", (("a", 1), ("c", 2))), 7),
        m.Send("h", m.ConfirmAttempts("w", (("b", 3),)), 7),
        m.Send("g", m.ConfirmAttempts("w", (("e", 1),)), 8),
    ]


def test_questions_are_due_again_and_again() -> None:
    """Confirmations are due periodically, also after a clock was set back, and never without an interval."""
    asking = Confirmations("w", EVERY_S)
    assert asking.is_due(1000.0)
    asking.messages([], 1000.0)
    assert [asking.is_due(now) for now in (1000.0, 1001.9, 1002.0, 900.0)] == [False, False, True, True]
    assert not Confirmations("w", None).is_due(1000.0)


def test_a_message_is_bounded_and_all_are_confirmed() -> None:
    """A holder of many attempts queries all of them in several messages of bounded size."""
    held = [(m.StreamRef("g", number), (f"r{number}", 1), 0.0) for number in range(2 * MAX_ATTEMPTS + 1)]
    questions = [send.message for send in Confirmations("w", EVERY_S).messages(held, 10.0)]
    named = [question.attempts for question in questions if isinstance(question, m.ConfirmAttempts)]
    assert [len(attempts) for attempts in named] == [MAX_ATTEMPTS, MAX_ATTEMPTS, 1]
    assert [attempt for attempts in named for attempt in attempts] == [attempt for _, attempt, _ in held]
