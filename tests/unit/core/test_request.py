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


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_ends_a_running_request(reason: FinishReason) -> None:
    assert is_terminal(advance(S.RUNNING, FINISH_EVENT[reason]))


@pytest.mark.parametrize(
    ("stop", "token_id", "output_tokens", "reason"),
    [
        (StopCriteria(3, (9,)), 1, 2, None),
        (StopCriteria(3), 1, 3, FinishReason.LENGTH),
        (StopCriteria(3), 1, 4, FinishReason.LENGTH),
        (StopCriteria(3, (7, 9)), 9, 3, FinishReason.STOP),
        (StopCriteria(8, (9,), min_new_tokens=2), 9, 1, None),
        (StopCriteria(8, (9,), min_new_tokens=2), 9, 2, FinishReason.STOP),
        (StopCriteria(2, (9,), min_new_tokens=5), 9, 2, FinishReason.LENGTH),
    ],
    ids=["below", "at the bound", "beyond", "stop before length", "too early", "at the minimum", "bound below minimum"],
)
def test_a_token_ends_a_sequence(
    stop: StopCriteria, token_id: int, output_tokens: int, reason: FinishReason | None
) -> None:
    """By a stop token that is not before the minimum, else by the bound, whatever the minimum."""
    assert stop.finish_reason(token_id, output_tokens) is reason
