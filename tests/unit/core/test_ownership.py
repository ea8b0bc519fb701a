"""The states of an ownership: every move of the table, and no other."""

from __future__ import annotations

import itertools

import pytest

from spotwise.core.gateway.keeping import OWNERSHIP_OVER, OWNERSHIPS, OwnershipEvent, OwnershipState
from spotwise.core.transitions import IllegalTransitionError, follow

S, E = OwnershipState, OwnershipEvent
CONTINUES = (S.BOUND, S.READ, S.UNREAD)

#: Written out once more, so that a change of the table is a decision and no slip.
LEGAL = {
    (S.BOUND, E.LEFT): S.CANCELLING,
    (S.READ, E.LEFT): S.UNREAD,
    (S.UNREAD, E.JOINED): S.READ,
    (S.UNREAD, E.EXPIRED): S.CANCELLING,
    (S.READ, E.CANCELLED): S.CANCELLING,
    (S.UNREAD, E.CANCELLED): S.CANCELLING,
    **{(state, E.ENDED): S.ENDING for state in (*CONTINUES, S.CANCELLING)},
    (S.CANCELLING, E.HANDED_ON): S.HANDED_ON,
    (S.ENDING, E.STORED): S.ENDED,
    **{(state, E.LOST): S.LOST for state in (*CONTINUES, S.CANCELLING, S.ENDING)},
    **{(state, event): state for state in (S.CANCELLING, S.ENDING) for event in (E.JOINED, E.LEFT, E.CANCELLED)},
}


@pytest.mark.parametrize(("move", "to"), LEGAL.items(), ids=str)
def test_each_legal_move(move: tuple[OwnershipState, OwnershipEvent], to: OwnershipState) -> None:
    """The table holds every move that an ownership may make."""
    assert follow(OWNERSHIPS, *move) is to


@pytest.mark.parametrize("move", [move for move in itertools.product(S, E) if move not in LEGAL], ids=str)
def test_every_other_move_raises(move: tuple[OwnershipState, OwnershipEvent]) -> None:
    """An illegal move is a bug of the caller, and the error has state and event."""
    with pytest.raises(IllegalTransitionError, match=f"from {move[0].value} on {move[1].value}"):
        follow(OWNERSHIPS, *move)


def test_what_is_over_stays_so_and_each_state_is_reached() -> None:
    """From the two states in which an ownership begins."""
    assert {state for state in S if not OWNERSHIPS[state]} == OWNERSHIP_OVER
    reached = {S.BOUND, S.UNREAD}
    while more := {to for (state, _), to in LEGAL.items() if state in reached} - reached:
        reached |= more
    assert reached == set(S)


def test_no_ending_is_stored_before_the_choices_have_ended() -> None:
    """Only their end leads to it, and only what was to be cancelled is handed on."""
    assert {event for (state, event), to in LEGAL.items() if to is S.ENDING and state is not S.ENDING} == {E.ENDED}
    assert [state for (state, _), to in LEGAL.items() if to is S.HANDED_ON] == [S.CANCELLING]
