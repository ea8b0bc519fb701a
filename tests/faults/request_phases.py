"""In which phase each request is, as the messages of its members tell: a listener to all subjects of a mesh."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Member
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire.codec import decode
from spotwise.wire.message_codec import MalformedMessageError

#: A submission that no order to a worker has followed for so long waits in the scheduler's queue.
_QUEUED_AFTER_S = 0.05
#: A request that has ended is finishing for so long.
_FINISHING_S = 0.05


class RequestPhase(StrEnum):
    """What becomes of a request next."""

    ACCEPTED = "accepted"  #: submitted to a scheduler
    QUEUED = "queued"  #: waits there for a worker
    RESERVED = "reserved"  #: its KV blocks are, on a token worker
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"  #: its KV, after its first token
    DECODING = "decoding"
    SWAPPED = "swapped"  #: of a worker that has KV on the host
    MOVING = "moving"  #: to another worker
    FINISHING = "finishing"  #: its last token was sent a moment ago


#: Phases that last for a message or two.
PASSING = (RequestPhase.ACCEPTED, RequestPhase.RESERVED, RequestPhase.FINISHING)


@dataclass(slots=True)
class _Followed:
    """A choice, by its newest attempt."""

    choice_id: str
    epoch: int
    submitted_s: float
    phase: RequestPhase = RequestPhase.ACCEPTED
    prompt_worker: str = ""
    ended_s: float | None = None


class PhaseWatch:
    """Follows every request of a mesh; `start` subscribes."""

    def __init__(self) -> None:
        self._choices: dict[str, _Followed] = {}
        self._streams: dict[tuple[str, int, int], str] = {}
        self._swapped: dict[str, int] = {}
        self._awaited: dict[RequestPhase, asyncio.Event] = {}
        self._changed = asyncio.Event()

    async def start(self, bus: NatsBus, *patterns: str) -> None:
        """Listen to the subjects that the bus's user may."""
        for pattern in patterns:
            await bus.subscribe(pattern, self._received)

    def present(self) -> Counter[RequestPhase]:
        """How many requests are in each phase now."""
        now = time.monotonic()
        for choice_id in [each.choice_id for each in self._choices.values() if _is_over(each, now)]:
            del self._choices[choice_id]
        counts = Counter(self._phase(each, now) for each in self._choices.values())
        if swapped := sum(self._swapped.values()):
            counts[RequestPhase.SWAPPED] = swapped
        return counts

    async def until_in_all(self, phases: frozenset[RequestPhase]) -> None:
        """Return once requests are in all of these phases at the same time."""
        while not phases <= self.present().keys():
            self._changed.clear()
            await self._changed.wait()

    async def next_in(self, phase: RequestPhase) -> None:
        """Return at the moment at which a request comes to one of `PASSING`."""
        event = self._awaited[phase] = asyncio.Event()
        await event.wait()

    def movable(self) -> list[tuple[str, int]]:
        """Choices that decode, and their epochs, oldest first."""
        return [
            (each.choice_id, each.epoch)
            for each in self._choices.values()
            if each.phase is RequestPhase.DECODING and each.ended_s is None
        ]

    def _phase(self, each: _Followed, now: float) -> RequestPhase:
        if each.ended_s is not None:
            return RequestPhase.FINISHING
        if each.phase is RequestPhase.ACCEPTED and now - each.submitted_s > _QUEUED_AFTER_S:
            return RequestPhase.QUEUED
        return each.phase

    async def _received(self, raw: BusMessage) -> None:
        now = time.monotonic()
        try:
            message = decode(raw.payload)
        except MalformedMessageError:
            return  # a simulated hand-off's frame
        if isinstance(message, m.TokenBatch):
            self._batch(raw.subject, message, now)
        elif isinstance(message, Member):
            self._swapped[message.id] = 0 if message.load is None else message.load.swapped
        elif isinstance(message, m.SubmitRequest):
            self._choices[message.choice_id] = _Followed(message.choice_id, message.epoch, now)
            self._entered(RequestPhase.ACCEPTED)
            stream = message.stream
            self._streams[stream.gateway_id, stream.incarnation, stream.attempt_id] = message.choice_id
        elif isinstance(message, m.OfAttempt):
            self._attempt(message, now)
        self._changed.set()

    def _attempt(self, message: m.OfAttempt, now: float) -> None:
        each = self._choices.get(message.choice_id)
        if each is None or message.epoch != each.epoch:
            return
        match message:
            case m.KvReserved():
                if each.phase in (RequestPhase.ACCEPTED, RequestPhase.QUEUED):
                    each.phase = RequestPhase.RESERVED
                    self._entered(RequestPhase.RESERVED)
            case m.StartPrefill():
                each.phase = RequestPhase.PREFILLING
            case m.RequestAssigned(prompt_worker=prompt_worker):
                each.prompt_worker = prompt_worker
            case m.MoveRequest():
                each.phase = RequestPhase.MOVING
            case m.MoveEnded() | m.RequestMoved():
                each.phase = RequestPhase.DECODING
            case m.CloseRequest():
                each.ended_s = now if each.ended_s is None else each.ended_s

    def _batch(self, subject: str, batch: m.TokenBatch, now: float) -> None:
        inbox, _, _ = subject.removeprefix("spotwise.v1.inbox.").rpartition(".from.")
        gateway_id, _, incarnation = inbox.rpartition(".")
        for delta in batch.deltas:
            choice_id = self._streams.get((gateway_id, int(incarnation), delta.attempt_id))
            each = None if choice_id is None else self._choices.get(choice_id)
            if each is None:
                continue
            if delta.finish_reason is not None:
                each.ended_s = now if each.ended_s is None else each.ended_s
                self._entered(RequestPhase.FINISHING)
            elif each.phase is RequestPhase.PREFILLING:
                each.phase = RequestPhase.TRANSFERRING
            elif each.phase is RequestPhase.TRANSFERRING:
                each.phase = RequestPhase.DECODING

    def _entered(self, phase: RequestPhase) -> None:
        if (event := self._awaited.pop(phase, None)) is not None:
            event.set()


def _is_over(each: _Followed, now: float) -> bool:
    return each.ended_s is not None and now - each.ended_s > _FINISHING_S
