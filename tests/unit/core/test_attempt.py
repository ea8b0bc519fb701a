"""The states of an attempt: every move of the table, and no other."""

from __future__ import annotations

from spotwise.core.gateway.open_request import ATTEMPT_OVER, ATTEMPTS, AttemptEvent, AttemptState

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


def test_the_table_has_these_moves_and_no_other() -> None:
    assert {(state, event): to for state, ways in ATTEMPTS.items() for event, to in ways.items()} == LEGAL


def test_what_is_over_is_over_until_the_next_attempt_begins() -> None:
    """No late message of an attempt brings it back; and each state can be reached."""
    for (state, event), to in LEGAL.items():
        if state in ATTEMPT_OVER and event is not E.BEGUN:
            assert to in ATTEMPT_OVER
    reached = {S.SUBMITTED}
    while more := {to for (state, _), to in LEGAL.items() if state in reached} - reached:
        reached |= more
    assert reached == set(S)
