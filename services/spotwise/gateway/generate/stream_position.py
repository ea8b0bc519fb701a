"""The events of one answer, and how much of it a client has: the `id` of every event where the client asks for positions.

`REQUEST_ID.POSITION`; the position is opaque to clients. It has the tokens of each choice that the client has received, a
checksum of their ids, and which choices are over; then, how many it has of the events that follow on those. Text and
log-probabilities follow from the tokens, whatever pieces they came in; with another checksum the stream would continue with
another answer.

Balancers and proxies cut what says nothing for a minute, which a queue or a long prompt exceeds. A comment is no event, has no
position, and comes after the headers only. One reader (`vllm bench serve`) drops the blanks round whatever the network gives,
and so takes a comment for the beginning of the next event: that one comes behind another comment, with which it begins again.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.types import Send

from spotwise.gateway.generate.choice import ChoiceText
from spotwise.http.errors import bad_request
from spotwise.http.sse import COMMENT, stream_start
from spotwise.mesh.process.background_work import end_tasks

_CHOICE = re.compile(r"([0-9]{1,9})-([0-9a-f]{1,8})(z?)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EVENTS = re.compile(r"[0-9]{0,9}")


@dataclass(slots=True)
class ChoicePosition:
    """How much of one choice a client has."""

    tokens: int = 0
    checksum: int = 0
    has_end: bool = False

    def add(self, token_ids: Sequence[int], *, is_end: bool) -> None:
        """Count the next tokens."""
        self.tokens += len(token_ids)
        self.checksum = zlib.crc32(array("I", token_ids), self.checksum)
        self.has_end = is_end


class StreamPosition:
    """A client's position in an answer of several choices; `events`: the number of events after its tokens."""

    def __init__(self, request_id: str, choices: Sequence[ChoicePosition], events: int = 0) -> None:
        self.request_id = request_id
        self.choices = choices
        self.events = events
        self._prefix = f"id: {request_id}.".encode()
        self._written = [_written(choice) for choice in choices]

    @classmethod
    def start(cls, request_id: str, choices: int) -> StreamPosition:
        """Return the position before all tokens."""
        return cls(request_id, [ChoicePosition() for _ in range(choices)])

    @classmethod
    def parse(cls, event_id: str) -> StreamPosition:
        """Return the position of a `Last-Event-ID`.

        Raises:
            ApiError: 400, it is none of this API's.
        """
        request_id, _, position = event_id.partition(".")
        position, _, events = position.partition(".")
        matches = [_CHOICE.fullmatch(each) for each in position.split("_")] if len(position) < 1 << 13 else [None]
        choices = [ChoicePosition(int(m[1]), int(m[2], 16), bool(m[3])) for m in matches if m is not None]
        if not _REQUEST_ID.fullmatch(request_id) or len(choices) != len(matches) or not _EVENTS.fullmatch(events):
            raise bad_request(
                "Invalid 'Last-Event-ID': send back the id of the last event that you received.",
                code="invalid_event_id",
            )
        return cls(request_id, choices, int(events or 0))

    @property
    def is_start(self) -> bool:
        """Whether the client has nothing that says more than that the answer begins."""
        return not any(choice.tokens or choice.has_end for choice in self.choices)

    def line(self) -> bytes:
        """Return the event's line of the position."""
        return self._prefix + b"_".join(self._written) + (b".%d\n" % self.events if self.events else b"\n")

    def take_events(self) -> int:
        """Return how many events the client has after its tokens, and count them anew from here on."""
        had, self.events = self.events, 0
        return had

    def add(self, index: int, token_ids: Sequence[int], *, is_end: bool) -> None:
        """Count a choice's next tokens."""
        if not token_ids and not is_end:
            return
        self.events = 0
        choice = self.choices[index]
        choice.add(token_ids, is_end=is_end)
        self._written[index] = _written(choice)


def _written(choice: ChoicePosition) -> bytes:
    return b"%d-%x%b" % (choice.tokens, choice.checksum, b"z" if choice.has_end else b"")


class EventStream:
    """Sends events.

    Args:
        send: ASGI's.
        position: what the client has of the stream, which continues after it; events carry no ids where there is none.
        keep_alive: what breaks a silence.
        silence_s: after which it does; 0: never.
    """

    def __init__(self, send: Send, position: StreamPosition | None, keep_alive: bytes, silence_s: float) -> None:
        self._send = send
        self._position = position
        self._events_had = 0 if position is None else position.take_events()
        self._keep_alive = keep_alive
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._breaking: asyncio.Task[None] | None = None
        self._follows_comment = False

    @property
    def is_start(self) -> bool:
        """Whether the client has nothing of the answer."""
        return self._position is None or self._position.is_start

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the headers; from now on the stream is never silent for long."""
        await self._send(stream_start(dict(headers)))
        self._sent_s = self._loop.time()
        if self._silence_s:
            self._timer = self._loop.call_later(self._silence_s, self._look)

    async def piece(self, index: int, piece: ChoiceText, events: Sequence[bytes]) -> None:
        """Send the events of a piece of choice `index`: the last of them says that the client has its tokens."""
        *begun, last = events or (b"",)
        await self.following(begun)
        if self._position is not None:
            self._position.add(index, piece.token_ids, is_end=piece.finish_reason is not None)
        if last:
            await self._event(last)

    async def following(self, events: Sequence[bytes]) -> None:
        """Send events that say no more of the tokens than those before them."""
        for each in events:
            if self._position is not None:
                self._position.events += 1
            await self._event(each)

    async def failure(self, events: Sequence[bytes]) -> None:
        """Send events that end the stream, from which none goes on."""
        for each in events:
            await self._write(each)

    async def end(self, last: bytes) -> None:
        """End the stream, with what comes after its events."""
        await self.close()
        await self._write(last, more_body=False)

    async def close(self) -> None:
        """Break no silence any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._breaking is not None:
            await end_tasks((self._breaking,))

    async def _event(self, written: bytes) -> None:
        if self._events_had:
            self._events_had -= 1  # the client has it
            return
        await self._write(written if self._position is None else self._position.line() + written)

    async def _write(self, written: bytes, *, more_body: bool = True) -> None:
        self._sent_s = self._loop.time()
        if self._follows_comment and written:
            written, self._follows_comment = COMMENT + written, False
        await self._send({"type": "http.response.body", "body": written, "more_body": more_body})

    def _look(self) -> None:
        """Break a silence, or look again when this one would be too long."""
        now_s = self._loop.time()
        if now_s >= self._sent_s + self._silence_s:
            self._sent_s = now_s
            if self._breaking is None or self._breaking.done():  # else the client reads nothing, and has enough to read
                self._breaking = asyncio.create_task(self._break_silence())
        self._timer = self._loop.call_at(self._sent_s + self._silence_s, self._look)

    async def _break_silence(self) -> None:
        self._follows_comment = self._keep_alive == COMMENT
        await self._send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})
