"""JSON texts: a bound on what one costs to parse, before it is parsed, and long ones written in parts.

A parser builds everything before its result can be checked and holds the interpreter meanwhile; a body of a few megabytes can
be millions of lists. Values are counted here by operations on bytes, in milliseconds.

One call that writes a hundred megabytes holds the interpreter, and with it the event loop, for as long as that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: Lists and objects in one another; templates and validators recurse into them.
MAX_DEPTH = 100
#: Lists and objects altogether. A chat has one or two a message.
MAX_CONTAINERS = 100_000
#: Strings, names of members included.
MAX_STRINGS = 200_000
#: Values altogether: as many as token ids fit into the largest body by default.
MAX_VALUES = 1_500_000

#: Looked at at once.
_PIECE_BYTES = 1 << 20
_STRUCTURE = b'"[]{},'
_OTHERS = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1, ord(","): 0}


class JsonTooComplexError(ValueError):
    """A text nests too deep or holds too many values; the message names the bound."""


def _pieces(text: bytes | bytearray) -> Iterator[bytes]:
    """Cut a text between escapes, so that other threads run in between."""
    start = 0
    while start < len(text):
        piece = bytes(text[start : start + _PIECE_BYTES])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = bytes(text[start : start + _PIECE_BYTES + 1])
        yield piece
        start += len(piece)


def _structure(piece: bytes) -> bytes:
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)


def require_bounded_json(text: bytes | bytearray) -> None:
    """Refuse a JSON text that would be too much; one that is no JSON may pass.

    Raises:
        JsonTooComplexError: it nests deeper, or holds more lists, strings or values, than a request needs.
    """
    opened = text.count(b"[") + text.count(b"{")
    if opened <= MAX_DEPTH and text.count(b'"') <= 2 * MAX_STRINGS and text.count(b",") < MAX_VALUES:
        return  # even if each of them counted
    # Without escapes every quotation mark begins or ends a string: every second piece between two is outside of strings.
    structure = b"".join(map(_structure, _pieces(text)))
    strings = structure.count(b'"') // 2
    if strings > MAX_STRINGS:
        raise JsonTooComplexError(f"it holds {strings} strings; at most {MAX_STRINGS} are allowed")
    outside = b"".join(structure.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > MAX_CONTAINERS:
        raise JsonTooComplexError(f"it holds {containers} lists and objects; at most {MAX_CONTAINERS} are allowed")
    values = containers + outside.count(b",")
    if values > MAX_VALUES:
        raise JsonTooComplexError(f"it holds {values} values; at most {MAX_VALUES} are allowed")
    brackets = outside.replace(b",", b"")
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH:
        raise JsonTooComplexError(f"it nests deeper than {MAX_DEPTH} levels")


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
        headers: headers of the response.
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
