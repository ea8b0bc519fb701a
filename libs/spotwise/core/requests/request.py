"""The life of a request, as one transition table.

Law: a sequence (one prompt, one choice) is in one state wherever it is held, and moves along `TRANSITIONS` only.
Gateway, scheduler and workers advance their own copies through the same table; an illegal move is a bug and raises.
FINISHED states and HANDED_OFF are final; every live state can be aborted and can fail.
Source: continuous batching (Orca, section 4) and phase splitting (Splitwise, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from spotwise.core.transitions import follow
from spotwise.core.values import value


class RequestState(StrEnum):
    """The state of a request at one holder."""

    WAITING = "waiting"  #: accepted; none of its iterations has run here
    WAITING_FOR_KV = "waiting_for_kv"  #: blocks are reserved here under a lease; its KV is computed elsewhere
    RUNNING = "running"  #: takes part in iterations here
    PREEMPTED = "preempted"  #: lost its blocks to an earlier one; is computed again when blocks are free
    MIGRATING = "migrating"  #: its KV is on the way to another worker
    HANDED_OFF = "handed_off"  #: this holder's part is done; the request lives on elsewhere
    FINISHED_STOPPED = "finished_stopped"  #: a stop token, a stop string or the end of sequence
    FINISHED_LENGTH = "finished_length"  #: `max_tokens` or the context is used up
    FINISHED_ABORTED = "finished_aborted"  #: the client left, or a newer attempt replaced this one
    FINISHED_ERROR = "finished_error"  #: it could not be served here


class RequestEvent(StrEnum):
    """What happened to a request."""

    PREFILL_STARTED = "prefill_started"
    HANDOFF_STARTED = "handoff_started"
    HANDOFF_DELIVERED = "handoff_delivered"
    HANDOFF_ABANDONED = "handoff_abandoned"
    KV_ARRIVED = "kv_arrived"
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    STOPPED = "stopped"
    LENGTH_REACHED = "length_reached"
    ABORTED = "aborted"
    FAILED = "failed"


class FinishReason(StrEnum):
    """Why a sequence ended, as workers report it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


_S, _E = RequestState, RequestEvent
_ENDINGS = {
    _E.ABORTED: _S.FINISHED_ABORTED,
    _E.FAILED: _S.FINISHED_ERROR,
}
TRANSITIONS: Mapping[RequestState, Mapping[RequestEvent, RequestState]] = MappingProxyType(
    {
        _S.WAITING: {**_ENDINGS, _E.PREFILL_STARTED: _S.RUNNING},
        _S.WAITING_FOR_KV: {**_ENDINGS, _E.KV_ARRIVED: _S.RUNNING},
        _S.RUNNING: {
            **_ENDINGS,
            _E.HANDOFF_STARTED: _S.MIGRATING,
            _E.PREEMPTED: _S.PREEMPTED,
            _E.STOPPED: _S.FINISHED_STOPPED,
            _E.LENGTH_REACHED: _S.FINISHED_LENGTH,
        },
        _S.PREEMPTED: {**_ENDINGS, _E.RESUMED: _S.RUNNING},
        _S.MIGRATING: {**_ENDINGS, _E.HANDOFF_DELIVERED: _S.HANDED_OFF, _E.HANDOFF_ABANDONED: _S.RUNNING},
        _S.HANDED_OFF: {},
        _S.FINISHED_STOPPED: {},
        _S.FINISHED_LENGTH: {},
        _S.FINISHED_ABORTED: {},
        _S.FINISHED_ERROR: {},
    }
)

FINISH_EVENT: Mapping[FinishReason, RequestEvent] = MappingProxyType(
    {
        FinishReason.STOP: _E.STOPPED,
        FinishReason.LENGTH: _E.LENGTH_REACHED,
        FinishReason.ABORT: _E.ABORTED,
        FinishReason.ERROR: _E.FAILED,
    }
)


def advance(state: RequestState, event: RequestEvent) -> RequestState:
    """Return the state that follows; `IllegalTransitionError` where the table has no such move."""
    return follow(TRANSITIONS, state, event)


def is_terminal(state: RequestState) -> bool:
    """Tell whether the state is final."""
    return not TRANSITIONS[state]


@value
class StopCriteria:
    """When a sequence ends by its token ids; stop strings are up to the gateway, which has the text.

    `max_new_tokens` is at least 1. `stop_token_ids` are sorted, end-of-sequence ids included unless the client ignores
    them; none is sampled before `min_new_tokens`.
    """

    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def finish_reason(self, token_id: int, output_tokens: int) -> FinishReason | None:
        """Return why the sequence ends with this token, which `output_tokens` counts; `None` if it continues."""
        if token_id in self.stop_token_ids and output_tokens >= self.min_new_tokens:
            return FinishReason.STOP
        if output_tokens >= self.max_new_tokens:
            return FinishReason.LENGTH
        return None
