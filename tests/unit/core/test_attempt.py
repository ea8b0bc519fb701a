"""The states of an attempt: every move of the table, and no other."""

from __future__ import annotations

import itertools

import pytest

from spotwise.core.gateway.open_request import ATTEMPT_OVER, ATTEMPTS, AttemptEvent, AttemptState
from spotwise.core.transitions import IllegalTransitionError, follow

S, E = AttemptState, AttemptEvent
UNDER_WAY = (S.SUBMITTED, S.QUEUED, S.PLACED)

#: Written out once more, so that a change of the table is a decision and no slip.
LEGAL = {
    (S.SUBMITTED, E.ACCEPTED): S.QUEUED,
    (S.QUEUED, E.ACCEPTED): S.QUEUED,
    (S.PLACED, E.ACCEPTED): S.PLACED,
    (S.LOST, E.ACCEPTED): S.LOST,
    (S.REJECTED, E.ACCEPTED): S.REJECTED,
    **{(state, E.PLACED): S.PLACED for state in UNDER_WAY},
    (S.LOST, E.PLACED): S.LOST,
    (S.REJECTED, E.PLACED): S.REJECTED,
    **{(state, E.LOST): S.LOST for state in UNDER_WAY},
    **{(state, E.REJECTED): S.REJECTED for state in (*UNDER_WAY, S.LOST, S.REJECTED)},
    **{(state, E.BEGUN): S.SUBMITTED for state in (*UNDER_WAY, S.LOST, S.REJECTED)},
    **{(state, E.PARKED): S.PARKED for state in (*UNDER_WAY, S.LOST, S.REJECTED)},
    (S.PARKED, E.UNPARKED): S.LOST,
}


@pytest.mark.parametrize(("move", "to"), LEGAL.items(), ids=str)
def test_each_legal_move(move: tuple[AttemptState, AttemptEvent], to: AttemptState) -> None:
    """The table holds every move that an attempt may make."""
    assert follow(ATTEMPTS, *move) is to


@pytest.mark.parametrize("move", [move for move in itertools.product(S, E) if move not in LEGAL], ids=str)
def test_every_other_move_raises(move: tuple[AttemptState, AttemptEvent]) -> None:
    """An illegal move is a bug of the caller, and the error has state and event."""
    with pytest.raises(IllegalTransitionError, match=f"from {move[0].value} on {move[1].value}"):
        follow(ATTEMPTS, *move)


def test_what_is_over_is_over_until_the_next_attempt_begins() -> None:
    """No late message of an attempt brings it back; and each state can be reached."""
    for (state, event), to in LEGAL.items():
        if state in ATTEMPT_OVER and event is not E.BEGUN:
            assert to in ATTEMPT_OVER
    reached = {S.SUBMITTED}
    while more := {to for (state, _), to in LEGAL.items() if state in reached} - reached:
        reached |= more
    assert reached == set(S)
