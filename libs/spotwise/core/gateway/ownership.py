"""The states of a gateway's ownership of a kept request, as one transition table.

Law: an owner stores one ending, after the last tokens. A gateway that has lost the request stores none and ends its attempts.
A request that is not resumable is cancelled with its connection; a resumable one continues without, and expires after a while.
A gateway that leaves does not cancel: what its connections would cancel is continued elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class OwnershipState(StrEnum):
    """Where an ownership is."""

    BOUND = "bound"  #: the request runs for one connection, and ends with it
    READ = "read"  #: resumable, and read by connections
    UNREAD = "unread"  #: resumable, and continues without a connection until it expires
    CANCELLING = "cancelling"  #: its attempts are to end
    ENDING = "ending"  #: its choices have ended; its last tokens and its ending are being stored
    ENDED = "ended"  #: over: the store has the ending, or does not answer and lets the request expire
    HANDED_ON = "handed_on"  #: over: another gateway continues it once its client asks
    LOST = "lost"  #: over: it has another owner


class OwnershipEvent(StrEnum):
    """What happened to an ownership."""

    JOINED = "joined"  #: a first connection reads
    LEFT = "left"  #: the last connection left
    EXPIRED = "expired"  #: no connection came for a while
    CANCELLED = "cancelled"  #: the caller cancels the request
    ENDED = "ended"  #: all choices have ended
    HANDED_ON = "handed_on"  #: all choices have ended because the process leaves
    STORED = "stored"  #: the store has the ending, or does not answer
    LOST = "lost"  #: another owner took the request


_S, _E = OwnershipState, OwnershipEvent
OWNERSHIPS: Mapping[OwnershipState, Mapping[OwnershipEvent, OwnershipState]] = MappingProxyType(
    {
        _S.BOUND: {_E.LEFT: _S.CANCELLING, _E.ENDED: _S.ENDING, _E.LOST: _S.LOST},
        _S.READ: {_E.LEFT: _S.UNREAD, _E.CANCELLED: _S.CANCELLING, _E.ENDED: _S.ENDING, _E.LOST: _S.LOST},
        _S.UNREAD: {
            _E.JOINED: _S.READ,
            _E.EXPIRED: _S.CANCELLING,
            _E.CANCELLED: _S.CANCELLING,
            _E.ENDED: _S.ENDING,
            _E.LOST: _S.LOST,
        },
        _S.CANCELLING: {
            **dict.fromkeys((_E.JOINED, _E.LEFT, _E.CANCELLED), _S.CANCELLING),
            _E.ENDED: _S.ENDING,
            _E.HANDED_ON: _S.HANDED_ON,
            _E.LOST: _S.LOST,
        },
        _S.ENDING: {
            **dict.fromkeys((_E.JOINED, _E.LEFT, _E.CANCELLED), _S.ENDING),
            _E.STORED: _S.ENDED,
            _E.LOST: _S.LOST,
        },
        _S.ENDED: {},
        _S.HANDED_ON: {},
        _S.LOST: {},
    }
)
#: States of an ownership that is over.
OVER = frozenset({_S.ENDED, _S.HANDED_ON, _S.LOST})
