"""The steps of a move: every one of the table, and no other; and how long each may last."""

from __future__ import annotations

from spotwise.core.messages.worker import MoveRequest
from spotwise.core.worker.sequences.move import BOUNDS_S, MOVES, MoveEvent, MoveStep, SequenceMove

S, E = MoveStep, MoveEvent

#: Written out once more, so that a change of the table is a decision and no slip.
LEGAL = {
    (S.RETURNING, E.ASKED): S.RESERVING,
    (S.RESERVING, E.GRANTED): S.COPYING,
    (S.COPYING, E.PARKED): S.PARKING,
    (S.PARKING, E.COMMITTED): S.HANDING_OVER,
    (S.COPYING, E.ABORTED): S.ABORTING,
    (S.PARKING, E.ABORTED): S.ABORTING,
    **{(step, E.DELIVERED): S.DELIVERED for step in (S.COPYING, S.PARKING, S.ABORTING, S.HANDING_OVER)},
}
WAY = [E.ASKED, E.GRANTED, E.PARKED, E.COMMITTED, E.DELIVERED]


def test_the_table_has_these_steps_and_no_other() -> None:
    assert {(step, event): to for step, ways in MOVES.items() for event, to in ways.items()} == LEGAL


def test_each_step_has_its_time() -> None:
    """A step's bound counts from its own beginning, and time in which this worker was away does not count."""
    move = SequenceMove(MoveRequest("r", 1, "planner", "target", 1), began_s=100.0)
    now, unbounded = 100.0, []
    for event in [None, *WAY]:
        if event is not None:
            now += 50.0  # longer than some bounds, as if no tick had come
            move.note(event, now)
        assert move.since_s(move.step) == now
        bound_s = BOUNDS_S.get(move.step)
        if bound_s is None:
            unbounded.append(move.step)
            assert not move.lasts_too_long(now + 1e9)
            continue
        assert not move.lasts_too_long(now + bound_s)
        assert move.lasts_too_long(now + bound_s + 0.01)
        move.was_away(5.0)
        assert not move.lasts_too_long(now + bound_s + 5.0)
        now += 5.0
    assert unbounded == [S.HANDING_OVER]
