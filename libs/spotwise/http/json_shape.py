"""Bounds the cost of parsing a JSON text before it is parsed.

A parser builds everything before its result can be checked and holds the interpreter meanwhile; a body of a few megabytes can
be millions of lists. Values are counted here by operations on bytes, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

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
