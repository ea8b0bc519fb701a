"""JSON in parts: long lists are written while their items come, and a body is sent without being one string.

One call that writes a hundred megabytes holds the interpreter, and with it the event loop, for as long as that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: Bytes that are sent at once, about.
_CHUNK_BYTES = 64 << 10
#: Chunks after which the loop has a turn, where the client takes them as fast as they come.
_CHUNKS_IN_A_TURN = 8


class JsonList:
    """A list of which the items are written already."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def extend(self, items: Sequence[Any]) -> None:
        """Write further items."""
        if items:
            self._parts.append(orjson.dumps(items)[1:-1])

    def parts(self) -> Iterator[bytes]:
        """Return the list in parts."""
        separator = b"["
        for part in self._parts:
            yield separator
            yield part
            separator = b","
        yield b"]" if self._parts else b"[]"


def json_parts(value: Any) -> Iterator[bytes]:
    """Return a value in parts, as JSON; in its objects, and lists of objects, there may be `JsonList`s."""
    if isinstance(value, JsonList):
        yield from value.parts()
    elif isinstance(value, dict) and value:
        separator = b"{"
        for name, member in value.items():
            yield separator + orjson.dumps(name) + b":"
            yield from json_parts(member)
            separator = b","
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        separator = b"["
        for item in value:
            yield separator
            yield from json_parts(item)
            separator = b","
        yield b"]"
    else:
        yield orjson.dumps(value)


class PartsResponse(Response):
    """A response of JSON that is there in parts.

    Args:
        parts: joined, the body.
        headers: of the response.
    """

    def __init__(self, parts: Iterable[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._chunks = list(_chunks(parts))
        length = str(sum(map(len, self._chunks)))
        super().__init__(headers={**(headers or {}), "Content-Length": length}, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; see the ASGI specification."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for number, chunk in enumerate(self._chunks, 1):
            await send({"type": "http.response.body", "body": chunk, "more_body": number < len(self._chunks)})
            if number % _CHUNKS_IN_A_TURN == 0:
                await asyncio.sleep(0)


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Return the same bytes in chunks of a size that a socket takes, one at least."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        for first in range(0, len(part), _CHUNK_BYTES):
            piece = part[first : first + _CHUNK_BYTES]
            waiting.append(piece)
            size += len(piece)
            if size >= _CHUNK_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
