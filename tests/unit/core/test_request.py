"""The life of a request: every move of the table, and no other."""

from __future__ import annotations

import itertools

import pytest

from spotwise.core.requests.request import (
    FINISH_EVENT,
    TRANSITIONS,
    FinishReason,
    RequestEvent,
    RequestState,
    StopCriteria,
    advance,
    is_terminal,
)
from spotwise.core.transitions import IllegalTransitionError

S, E = RequestState, RequestEvent

#: Written out once more, so that a change of the table is a decision and no slip.
LEGAL = {
    (S.WAITING, E.PREFILL_STARTED): S.RUNNING,
    (S.WAITING, E.ABORTED): S.FINISHED_ABORTED,
    (S.WAITING, E.FAILED): S.FINISHED_ERROR,
    (S.WAITING_FOR_KV, E.KV_ARRIVED): S.RUNNING,
    (S.WAITING_FOR_KV, E.ABORTED): S.FINISHED_ABORTED,
    (S.WAITING_FOR_KV, E.FAILED): S.FINISHED_ERROR,
    (S.RUNNING, E.HANDOFF_STARTED): S.MIGRATING,
    (S.RUNNING, E.PREEMPTED): S.PREEMPTED,
    (S.PREEMPTED, E.RESUMED): S.RUNNING,
    (S.PREEMPTED, E.ABORTED): S.FINISHED_ABORTED,
    (S.PREEMPTED, E.FAILED): S.FINISHED_ERROR,
    (S.RUNNING, E.STOPPED): S.FINISHED_STOPPED,
    (S.RUNNING, E.LENGTH_REACHED): S.FINISHED_LENGTH,
    (S.RUNNING, E.ABORTED): S.FINISHED_ABORTED,
    (S.RUNNING, E.FAILED): S.FINISHED_ERROR,
    (S.MIGRATING, E.HANDOFF_DELIVERED): S.HANDED_OFF,
    (S.MIGRATING, E.HANDOFF_ABANDONED): S.RUNNING,
    (S.MIGRATING, E.ABORTED): S.FINISHED_ABORTED,
    (S.MIGRATING, E.FAILED): S.FINISHED_ERROR,
}
TERMINAL = {S.HANDED_OFF, S.FINISHED_STOPPED, S.FINISHED_LENGTH, S.FINISHED_ABORTED, S.FINISHED_ERROR}


@pytest.mark.parametrize(("move", "to"), LEGAL.items(), ids=str)
def test_each_legal_move_follows_the_life_cycle(move: tuple[RequestState, RequestEvent], to: RequestState) -> None:
    """The table holds every move that a request may make."""
    assert advance(*move) is to


@pytest.mark.parametrize("move", [move for move in itertools.product(S, E) if move not in LEGAL], ids=str)
def test_every_other_move_raises(move: tuple[RequestState, RequestEvent]) -> None:
    """An illegal move is a bug of the caller, and the error has state and event."""
    with pytest.raises(IllegalTransitionError, match=f"from {move[0].value} on {move[1].value}"):
        advance(*move)


def test_terminal_states_have_no_way_out() -> None:
    """HANDED_OFF and the finished states are ends; no other state is."""
    assert {state for state in S if is_terminal(state)} == TERMINAL
    assert set(TRANSITIONS) == set(S)


@pytest.mark.parametrize("state", [state for state in S if state not in TERMINAL])
def test_every_live_state_can_be_aborted_and_can_fail(state: RequestState) -> None:
    """A client may leave and a machine may break at any moment."""
    assert advance(state, E.ABORTED) is S.FINISHED_ABORTED
    assert advance(state, E.FAILED) is S.FINISHED_ERROR


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_ends_a_running_request(reason: FinishReason) -> None:
    assert is_terminal(advance(S.RUNNING, FINISH_EVENT[reason]))


class TestStopCriteria:
    """The token ids that end a sequence."""

    def test_continues_below_the_bound(self) -> None:
        assert StopCriteria(3, (9,)).finish_reason(token_id=1, output_tokens=2) is None

    def test_ends_by_length_at_the_bound_and_beyond(self) -> None:
        assert StopCriteria(3).finish_reason(1, 3) is FinishReason.LENGTH
        assert StopCriteria(3).finish_reason(1, 4) is FinishReason.LENGTH

    def test_a_stop_token_wins_over_length(self) -> None:
        assert StopCriteria(3, (7, 9)).finish_reason(9, 3) is FinishReason.STOP

    def test_a_stop_token_before_the_minimum_ends_nothing(self) -> None:
        stop = StopCriteria(8, (9,), min_new_tokens=2)
        assert stop.finish_reason(9, 1) is None
        assert stop.finish_reason(9, 2) is FinishReason.STOP

    def test_the_bound_holds_whatever_the_minimum(self) -> None:
        """`max_new_tokens` ends a request even if `min_new_tokens` is larger."""
        assert StopCriteria(2, (9,), min_new_tokens=5).finish_reason(9, 2) is FinishReason.LENGTH
