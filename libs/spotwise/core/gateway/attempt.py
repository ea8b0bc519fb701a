"""The states of a request's newest attempt, as its gateway knows them, as one transition table.

Law: an attempt is under way until it is lost, rejected or parked; then another begins, from the committed tokens. Messages of
an attempt that is over come late and change nothing; only a rejection still tells that no member has anything of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class AttemptState(StrEnum):
    """Where an attempt is."""

    SUBMITTED = "submitted"  #: on its way to a scheduler, or held there without a word
    QUEUED = "queued"  #: a scheduler has accepted it; its workers are not known
    PLACED = "placed"  #: its workers are known: a scheduler named them, or they sent tokens
    LOST = "lost"  #: over; the next one begins at a time
    REJECTED = "rejected"  #: over, and no scheduler and no worker has anything of it; the next one begins at a time
    PARKED = "parked"  #: over; none begins until the client reads


class AttemptEvent(StrEnum):
    """What happened to an attempt."""

    BEGUN = "begun"
    ACCEPTED = "accepted"
    PLACED = "placed"
    LOST = "lost"
    REJECTED = "rejected"
    PARKED = "parked"
    UNPARKED = "unparked"


_S, _E = AttemptState, AttemptEvent
_ENDINGS = {_E.BEGUN: _S.SUBMITTED, _E.LOST: _S.LOST, _E.REJECTED: _S.REJECTED, _E.PARKED: _S.PARKED}
_OVER = {_E.BEGUN: _S.SUBMITTED, _E.REJECTED: _S.REJECTED, _E.PARKED: _S.PARKED}
ATTEMPTS: Mapping[AttemptState, Mapping[AttemptEvent, AttemptState]] = MappingProxyType(
    {
        _S.SUBMITTED: {**_ENDINGS, _E.ACCEPTED: _S.QUEUED, _E.PLACED: _S.PLACED},
        _S.QUEUED: {**_ENDINGS, _E.ACCEPTED: _S.QUEUED, _E.PLACED: _S.PLACED},
        _S.PLACED: {**_ENDINGS, _E.ACCEPTED: _S.PLACED, _E.PLACED: _S.PLACED},
        _S.LOST: {**_OVER, _E.ACCEPTED: _S.LOST, _E.PLACED: _S.LOST},
        _S.REJECTED: {**_OVER, _E.ACCEPTED: _S.REJECTED, _E.PLACED: _S.REJECTED},
        _S.PARKED: {_E.UNPARKED: _S.LOST},
    }
)
#: States of an attempt that is over.
OVER = frozenset({_S.LOST, _S.REJECTED, _S.PARKED})
