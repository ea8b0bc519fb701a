"""The policy of kept requests at one gateway: who owns a request, whether it continues without its client, and how it ends.

Law: of two turns of this process the later one owns the request; a turn that is over changes nothing any more (`OWNERSHIPS`).
The first cause ends a request: its choices' end, its caller's wish, or the absence of a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from spotwise.core.gateway.commands import FAIL_TAKEN
from spotwise.core.gateway.kept_request import CANCELLED, KeptEnding, KeptState, turn_of
from spotwise.core.transitions import follow

#: How long a stream that is not resumable is kept after its end, for a client whose gateway died with the last events.
ENDED_STREAM_KEPT_S = 30.0


class OwnershipState(StrEnum):
    """Where a gateway's ownership of a kept request is.

    Law: an owner stores one ending, after the last tokens. A gateway that has lost the request stores none and ends its
    attempts. A request that is not resumable is cancelled with its connection; a resumable one continues without, and expires
    after a while. A gateway that leaves does not cancel: what its connections would cancel is continued elsewhere.
    """

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
OWNERSHIP_OVER = frozenset({_S.ENDED, _S.HANDED_ON, _S.LOST})


class Turn(NamedTuple):
    """One ownership: a request and its owner, as the store knows it (`owner_of`)."""

    request_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class RequestOwned:
    """This gateway has become the owner of a request, which outlives its connections where it `is_resumable`."""

    turn: Turn
    is_resumable: bool


@dataclass(frozen=True, slots=True)
class RequestLost:
    """Another turn, of this process or of another one, owns the request from now on, or the store has forgotten it."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class ReaderJoined:
    """A connection reads a resumable request."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class ReaderLeft:
    """A connection that read has ended; of a request that is not resumable only where it broke."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The time is over that `AwaitReader` of this number began."""

    turn: Turn
    wait: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The caller cancels the request."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class ChoicesEnded:
    """All choices have ended here; `ending` is their own, `is_leaving` tells that this process ends."""

    turn: Turn
    ending: KeptEnding
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class EndingStored:
    """The store has the ending, or does not answer and lets the request expire; `RequestLost` where another owner has it."""

    turn: Turn


KeepingEvent = (
    RequestOwned | RequestLost | ReaderJoined | ReaderLeft | WaitEnded | CancelRequested | ChoicesEnded | EndingStored
)


@dataclass(frozen=True, slots=True)
class AwaitReader:
    """Feed `WaitEnded` with this number after so many seconds."""

    turn: Turn
    wait: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelChoices:
    """End the choices that run here; those of a connection end with it."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class StoreEnding:
    """Save the last tokens and store the ending, which is kept for `kept_s`; feed `EndingStored` or `RequestLost` then."""

    turn: Turn
    ending: KeptEnding
    kept_s: float


@dataclass(frozen=True, slots=True)
class SaveTokens:
    """Save the last tokens, for the gateway that continues the request, then forget it."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class StepDown:
    """End the attempts that run here, and tell their connections that another owner has the request."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the request and the tokens that were remembered for the store; its ownership is over."""

    turn: Turn


KeepingCommand = AwaitReader | CancelChoices | StoreEnding | SaveTokens | StepDown | Forget


class Resumption(StrEnum):
    """What is to be done with a request that a client asks for again."""

    JOIN = "join"  #: it runs here, for any number of connections
    TAKE = "take"  #: this process is to become its owner
    REPLAY = "replay"  #: its answer is whole, in the store
    REFUSE_FAILED = "refuse failed"  #: its answer is the error that ended it
    REFUSE_CANCELLED = "refuse cancelled"  #: it has no answer


_RESUMPTION_OF_ENDED: Mapping[str, Resumption] = {
    "finished": Resumption.REPLAY,
    "failed": Resumption.REFUSE_FAILED,
    "cancelled": Resumption.REFUSE_CANCELLED,
}


@dataclass(slots=True)
class _Ownership:
    turn: Turn
    is_resumable: bool
    state: OwnershipState
    readers: int = 0
    wait: int = 0
    ending: KeptEnding | None = None


class KeepingRole:
    """The requests that one gateway owns.

    Args:
        resume_s: how long a resumable request continues without a connection.
        answer_kept_s: how long it is kept after its end.
    """

    def __init__(self, resume_s: float, answer_kept_s: float) -> None:
        self._resume_s = resume_s
        self._answer_kept_s = answer_kept_s
        self._owned: dict[str, _Ownership] = {}
        self._commands: list[KeepingCommand] = []
        self._handlers: Mapping[type, Callable[[_Ownership, Any], None]] = {
            RequestLost: lambda owned, _: self._note(owned, OwnershipEvent.LOST),
            ReaderJoined: self._reader_joined,
            ReaderLeft: self._reader_left,
            WaitEnded: self._wait_ended,
            CancelRequested: lambda owned, _: self._note(owned, OwnershipEvent.CANCELLED),
            ChoicesEnded: self._choices_ended,
            EndingStored: lambda owned, _: self._note(owned, OwnershipEvent.STORED),
        }

    def handle(self, event: KeepingEvent, now: float) -> list[KeepingCommand]:
        """Handle an event and return commands; an event of a turn that is over is ignored."""
        if isinstance(event, RequestOwned):
            self._request_owned(event)
        elif (owned := self._of(event.turn)) is not None:
            self._handlers[type(event)](owned, event)
        commands, self._commands = self._commands, []
        return commands

    def owns(self, turn: Turn) -> bool:
        """Tell whether a turn owns its request, as far as this gateway knows."""
        return self._of(turn) is not None

    def turn_of(self, request_id: str) -> Turn | None:
        """Return the turn in which this gateway owns a request; `None` where it does not."""
        owned = self._owned.get(request_id)
        return None if owned is None else owned.turn

    def can_join(self, turn: Turn) -> bool:
        """Tell whether more connections may read the request here: it is resumable, and this turn owns it."""
        owned = self._of(turn)
        return owned is not None and owned.is_resumable

    def resumption(self, kept: KeptState) -> Resumption:
        """Return what is to be done with a request of which the store keeps this."""
        if self.can_join(Turn(kept.request.request_id, kept.owner)):
            return Resumption.JOIN
        return Resumption.TAKE if kept.ending is None else _RESUMPTION_OF_ENDED[kept.ending.state]

    def kept_s(self, *, is_resumable: bool) -> float:
        """Return how long a request is kept after its end."""
        return self._answer_kept_s if is_resumable else ENDED_STREAM_KEPT_S

    def _of(self, turn: Turn) -> _Ownership | None:
        owned = self._owned.get(turn.request_id)
        return owned if owned is not None and owned.turn == turn else None

    def _request_owned(self, event: RequestOwned) -> None:
        former = self._owned.get(event.turn.request_id)
        if former is not None and turn_of(former.turn.owner) > turn_of(event.turn.owner):
            self._commands.append(Forget(event.turn))  # nothing runs in it; the choices here are the later turn's
            return
        if former is not None:
            self._note(former, OwnershipEvent.LOST)
        state = OwnershipState.UNREAD if event.is_resumable else OwnershipState.BOUND
        owned = self._owned[event.turn.request_id] = _Ownership(event.turn, event.is_resumable, state)
        if state is OwnershipState.UNREAD:
            self._await_reader(owned)

    def _reader_joined(self, owned: _Ownership, event: ReaderJoined) -> None:
        owned.readers += 1
        if owned.readers == 1:
            self._note(owned, OwnershipEvent.JOINED)

    def _reader_left(self, owned: _Ownership, event: ReaderLeft) -> None:
        owned.readers = max(0, owned.readers - 1)
        if not owned.readers:
            self._note(owned, OwnershipEvent.LEFT)

    def _wait_ended(self, owned: _Ownership, event: WaitEnded) -> None:
        if owned.state is OwnershipState.UNREAD and owned.wait == event.wait:
            self._note(owned, OwnershipEvent.EXPIRED)

    def _choices_ended(self, owned: _Ownership, event: ChoicesEnded) -> None:
        if event.ending.code == FAIL_TAKEN:
            self._note(owned, OwnershipEvent.LOST)
        elif owned.state is OwnershipState.CANCELLING and event.is_leaving:
            self._note(owned, OwnershipEvent.HANDED_ON)
        else:
            owned.ending = CANCELLED if owned.state is OwnershipState.CANCELLING else event.ending
            self._note(owned, OwnershipEvent.ENDED)

    def _note(self, owned: _Ownership, event: OwnershipEvent) -> None:
        """Take an event to the table, and give the commands of the state that it leads to."""
        before, owned.state = owned.state, follow(OWNERSHIPS, owned.state, event)
        if owned.state is before:
            return
        match owned.state:
            case OwnershipState.UNREAD:
                self._await_reader(owned)
            case OwnershipState.CANCELLING:
                self._commands.append(CancelChoices(owned.turn))
            case OwnershipState.ENDING:
                assert owned.ending is not None
                kept_s = self.kept_s(is_resumable=owned.is_resumable)
                self._commands.append(StoreEnding(owned.turn, owned.ending, kept_s))
            case OwnershipState.ENDED:
                self._commands.append(Forget(owned.turn))
            case OwnershipState.HANDED_ON:
                self._commands.append(SaveTokens(owned.turn))
            case OwnershipState.LOST:
                self._commands += [StepDown(owned.turn), Forget(owned.turn)]
        if owned.state in OWNERSHIP_OVER:
            del self._owned[owned.turn.request_id]

    def _await_reader(self, owned: _Ownership) -> None:
        owned.wait += 1
        self._commands.append(AwaitReader(owned.turn, owned.wait, self._resume_s))
