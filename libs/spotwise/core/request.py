"""The life of a request, as one transition table.

Law: a request (more exactly one *sequence*: one prompt, one choice) is in exactly one state wherever it is held, and moves
only along `TRANSITIONS`. The gateway, the scheduler and both workers advance their own copy through the same table; an
illegal move raises, because it is a bug and never an expected failure.

Sources: states after the vocabulary of continuous batching (Orca, section 4) and of phase splitting (Splitwise, section 4.2:
a prompt machine, a KV cache transfer, a token machine).

Invariants: a FINISHED state or HANDED_OFF has no way out; every live state can be aborted and can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class RequestState(StrEnum):
    """Where a request stands in the hands of one holder."""

    WAITING = "waiting"  #: accepted; none of its iterations has run here
    WAITING_FOR_KV = "waiting_for_kv"  #: blocks are reserved here under a lease; its KV is computed elsewhere
    RUNNING = "running"  #: takes part in iterations here
    PREEMPTED = "preempted"  #: lost its blocks to an earlier one; is computed again when there is room
    MIGRATING = "migrating"  #: its KV is on the way to another worker
    HANDED_OFF = "handed_off"  #: this holder's part is done; the request lives on elsewhere
    FINISHED_STOPPED = "finished_stopped"  #: a stop token, a stop string or the end of sequence
    FINISHED_LENGTH = "finished_length"  #: `max_tokens` or the context is used up
    FINISHED_ABORTED = "finished_aborted"  #: the client left, or a newer attempt replaced this one
    FINISHED_ERROR = "finished_error"  #: it could not be served here


class RequestEvent(StrEnum):
    """What happened to a request; each is the past tense of something real."""

    PREFILL_STARTED = "prefill_started"
    HANDOFF_STARTED = "handoff_started"
    HANDOFF_DELIVERED = "handoff_delivered"
    KV_ARRIVED = "kv_arrived"
    PREEMPTED = "preempted"
    RESUMED = "resumed"
    STOPPED = "stopped"
    LENGTH_REACHED = "length_reached"
    ABORTED = "aborted"
    FAILED = "failed"


class FinishReason(StrEnum):
    """Why a sequence ended, as the worker tells the gateway."""

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
        _S.MIGRATING: {**_ENDINGS, _E.HANDOFF_DELIVERED: _S.HANDED_OFF},
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


class IllegalTransitionError(RuntimeError):
    """A request was asked to do what its state does not allow: a bug in the caller."""


def advance(state: RequestState, event: RequestEvent) -> RequestState:
    """Return the state that follows.

    Raises:
        IllegalTransitionError: the table has no such move.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransitionError(f"no transition from {state.value} on {event.value}") from None


def is_terminal(state: RequestState) -> bool:
    """Tell whether nothing more happens to the request in this holder's hands."""
    return not TRANSITIONS[state]


@dataclass(frozen=True, slots=True)
class StopCriteria:
    """When a sequence ends, as far as token ids can tell; stop *strings* are the gateway's, which has the text.

    Attributes:
        max_new_tokens: upper bound of output tokens, at least 1.
        stop_token_ids: sorted ids that end the sequence, end-of-sequence ids included unless the client ignores them.
        min_new_tokens: no stop token is sampled before this many output tokens.
    """

    max_new_tokens: int
    stop_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0

    def finish_reason(self, token_id: int, output_tokens: int) -> FinishReason | None:
        """Decide after a token was sampled; `output_tokens` counts it."""
        if token_id in self.stop_token_ids and output_tokens >= self.min_new_tokens:
            return FinishReason.STOP
        if output_tokens >= self.max_new_tokens:
            return FinishReason.LENGTH
        return None
