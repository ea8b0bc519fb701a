"""The states of an ownership: every move of the table, and no other."""

from __future__ import annotations

from spotwise.core.gateway.keeping import OWNERSHIP_OVER, OWNERSHIPS, OwnershipEvent, OwnershipState

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


def test_the_table_has_these_moves_and_no_other() -> None:
    assert {(state, event): to for state, ways in OWNERSHIPS.items() for event, to in ways.items()} == LEGAL


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
