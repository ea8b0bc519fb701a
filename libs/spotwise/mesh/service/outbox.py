"""A member's messages on their way: those to publish, ordered and bounded, and received ones that say what the last one said.

While the broker is unreachable, workers continue and fill it;
the oldest messages are dropped, and are to their receivers as lost ones.
"""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from spotwise.core.latest import LatestDict
from spotwise.core.messages.mesh import Message
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire.codec import decode

_log = structlog.get_logger(__name__)

#: Subjects whose last message is kept; one for each member of the mesh, the ones that were heard last.
_KEPT = 4096


class RepeatedMessages:
    """The last message of each subject; core's messages never change, so that the same one is returned again."""

    def __init__(self) -> None:
        self._last = LatestDict[str, tuple[bytes, Message]](_KEPT)

    def decode(self, raw: BusMessage) -> Message:
        """Return the message; raises `MalformedMessageError` as `decode` of the codec."""
        known = self._last.get(raw.subject)
        if known is not None and known[0] == raw.payload:
            return known[1]
        message = decode(raw.payload)
        self._last[raw.subject] = raw.payload, message
        return message


#: Of all queued messages: minutes of a worker's tokens.
OUTBOX_BYTES = 16 << 20


class Outbox:
    """A FIFO queue of messages, `max_bytes` in all; the newest one stays whatever its size."""

    def __init__(self, max_bytes: int = OUTBOX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._dropped = 0
        self._has_messages = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, subject: str, payload: bytes) -> None:
        """Add a message; drop the oldest where they exceed `max_bytes`."""
        self._messages.append((subject, payload))
        self._bytes += len(payload)
        self._has_messages.set()
        self._is_empty.clear()
        while self._bytes > self._max_bytes and len(self._messages) > 1:
            _, dropped = self._messages.popleft()
            self._bytes -= len(dropped)
            self._dropped += 1
            if self._dropped == 1:
                _log.error(
                    "outbox_full",
                    bytes=self._max_bytes,
                    error="the broker takes nothing; oldest messages are dropped",
                )

    async def take(self) -> tuple[str, bytes]:
        """Wait for the oldest message and take it; call `sent` afterwards."""
        await self._has_messages.wait()
        subject, payload = self._messages.popleft()
        self._bytes -= len(payload)
        if not self._messages:
            self._has_messages.clear()
        return subject, payload

    def sent(self) -> None:
        """Note that the message taken has been sent, or is lost."""
        if self._messages:
            return
        self._is_empty.set()
        if self._dropped:
            _log.warning("outbox_emptied", messages_lost=self._dropped)
            self._dropped = 0

    async def emptied(self) -> None:
        """Wait until all is sent."""
        await self._is_empty.wait()
