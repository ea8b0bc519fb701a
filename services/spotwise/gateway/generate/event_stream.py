"""The events of one answer on their way to its client: with positions where it asks for them, and never silent for long.

Balancers and proxies cut what says nothing for a minute, which a queue or a long prompt exceeds. A comment is no event, has no
position, and comes after the headers only. One reader (`vllm bench serve`) drops the blanks round whatever the network gives,
and so takes a comment for the beginning of the next event: that one comes behind another comment, with which it begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.types import Send

from spotwise.gateway.generate.choice import ChoiceText
from spotwise.gateway.generate.stream_position import StreamPosition
from spotwise.http.sse import COMMENT, stream_start
from spotwise.mesh.process.cancelling import end_tasks


class EventStream:
    """Sends events.

    Args:
        send: ASGI's.
        position: what the client has of the stream, which goes on after it; events carry no ids where there is none.
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
