"""The steps of a sequence's way to another worker, as one transition table, and how long each may last.

Law: a move takes its steps in this order, and may be aborted while KV is copied; where a step lasts too long, the sequence goes
on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from spotwise.core.messages.worker import MoveRequest
from spotwise.core.requests.record import KvTarget
from spotwise.core.transitions import follow

#: A parked sequence whose gateway is not heard of for so long goes on where it was.
ACKNOWLEDGED_WITHIN_S = 2.0
#: A target that does not answer a reservation for so long has not received it.
RESERVED_WITHIN_S = 2.0
#: A move waits no longer for KV to come back from the host.
RETURNED_WITHIN_S = 2.0
#: A copy of full blocks, and an iteration that a parked sequence is in, end within so long, or the sequence goes on here:
#: links that lose packets have ended by their own bound by then, and a stuck iteration is its watchdog's.
COPIED_WITHIN_S = 60.0


class MoveStep(StrEnum):
    """How far a move has come."""

    RETURNING = "returning"  #: its KV is being swapped in; the target was not asked yet
    RESERVING = "reserving"  #: the target was asked for blocks; the sequence decodes
    COPYING = "copying"  #: full blocks are copied; the sequence decodes
    PARKING = "parking"  #: it takes part in no further iteration
    ABORTING = "aborting"  #: it goes on here, once its copy has ended; the target has been told
    HANDING_OVER = "handing_over"  #: the tail is copied
    DELIVERED = "delivered"  #: the target has it; its gateway has not acknowledged that


class MoveEvent(StrEnum):
    """What happened to a move that goes on."""

    ASKED = "asked"
    GRANTED = "granted"
    PARKED = "parked"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DELIVERED = "delivered"


_S, _E = MoveStep, MoveEvent
#: A target may have the sequence although the transport says that a copy failed: its gateway has said so.
_ARRIVES = {_E.DELIVERED: _S.DELIVERED}
MOVES: Mapping[MoveStep, Mapping[MoveEvent, MoveStep]] = MappingProxyType(
    {
        _S.RETURNING: {_E.ASKED: _S.RESERVING},
        _S.RESERVING: {_E.GRANTED: _S.COPYING},
        _S.COPYING: {**_ARRIVES, _E.PARKED: _S.PARKING, _E.ABORTED: _S.ABORTING},
        _S.PARKING: {**_ARRIVES, _E.COMMITTED: _S.HANDING_OVER, _E.ABORTED: _S.ABORTING},
        _S.ABORTING: _ARRIVES,
        _S.HANDING_OVER: _ARRIVES,
        _S.DELIVERED: {},
    }
)
#: How long a step lasts at most, in seconds; of the others the transport knows.
BOUNDS_S: Mapping[MoveStep, float] = MappingProxyType(
    {
        _S.RETURNING: RETURNED_WITHIN_S,
        _S.RESERVING: RESERVED_WITHIN_S,
        _S.COPYING: COPIED_WITHIN_S,
        _S.PARKING: COPIED_WITHIN_S,
        _S.DELIVERED: ACKNOWLEDGED_WITHIN_S,
    }
)


@dataclass(slots=True)
class SequenceMove:
    """A sequence's way to another worker.

    Attributes:
        began_s: when it was ordered.
        hop: the number that the target was asked under; another for each move of the sequence.
        reservation: at the target, once it has granted it.
        tokens_copied: tokens whose KV was copied while it decoded.
        is_acknowledged: its gateway takes its tokens from the target.
        why_aborted: for people, where it is `ABORTING`.
    """

    order: MoveRequest
    began_s: float
    step: MoveStep = MoveStep.RETURNING
    hop: int = 0
    reservation: KvTarget | None = None
    tokens_copied: int = 0
    is_acknowledged: bool = False
    why_aborted: str = ""
    _since_s: dict[MoveStep, float] = field(default_factory=dict)

    def note(self, event: MoveEvent, now: float) -> None:
        """Take the next step."""
        self.step = follow(MOVES, self.step, event)
        self._since_s[self.step] = now

    def since_s(self, step: MoveStep) -> float:
        """Return when a step that the move has taken began."""
        return self.began_s if step is MoveStep.RETURNING else self._since_s[step]

    def lasts_too_long(self, now: float) -> bool:
        """Tell whether its step has come to its bound."""
        bound_s = BOUNDS_S.get(self.step)
        return bound_s is not None and now - self.since_s(self.step) > bound_s

    def was_away(self, seconds: float) -> None:
        """Extend all steps by a time in which no answer could be received."""
        self.began_s += seconds
        self._since_s = {step: since_s + seconds for step, since_s in self._since_s.items()}
