"""Cuts what comes on a connection, so that every request begins at the beginning of a piece.

The parser takes more than HTTP/1 allows in a request's line, and says neither what it took nor where a request ended. With cuts
made here the head is known as it came, and a request that the parser finds elsewhere is refused.
"""

from __future__ import annotations

import re

_HEAD_END = b"\r\n\r\n"
#: What may be the end of a chunked body with a request behind it.
_CHUNKS_END = re.compile(rb"\r\n\r\n(?=[A-Z])")
#: Framing of a body in chunks that is borne however short the body is, as Go's server does.
_FREE_FRAMING_BYTES = 16 << 10


class MessageCuts:
    """The cuts of one connection.

    Attributes:
        head: what came of the request's head, or all of it.
    """

    def __init__(self) -> None:
        self.head = bytearray()
        self._has_begun = self._may_begin = False
        self._in_head = True
        self._body_left_bytes = 0
        self._seam = b""  # the end of what came of a body in chunks
        self._framing_bytes = 0  # of it, less its content

    def cut(self, data: bytes, start: int) -> int:
        """Return where the piece ends that begins at `start`, and is the next for the parser."""
        if self._in_head:
            return self._cut_head(data, start)
        if self._body_left_bytes:
            end = min(len(data), start + self._body_left_bytes)
            self._body_left_bytes -= end - start
            return end
        seam = self._seam + data[start : start + len(_HEAD_END)]
        if found := _CHUNKS_END.search(seam):
            end = start + found.end() - len(self._seam)
        else:
            found = _CHUNKS_END.search(data, start)
            end = len(data) if found is None else found.end()
        self._seam = (self._seam + data[max(start, end - 3) : end])[-3:]
        self._framing_bytes += end - start
        return end

    def _cut_head(self, data: bytes, start: int) -> int:
        if not self._has_begun:
            self._may_begin = True
            if (end := len(data) - len(data[start:].lstrip(b"\r\n"))) > start:
                self.head += data[start:end]
                return end
        seam = bytes(self.head[-3:])
        at = (seam + data[start : start + 3]).find(_HEAD_END)
        if at >= 0:
            end = start + at + len(_HEAD_END) - len(seam)
        else:
            at = data.find(_HEAD_END, start)
            end = len(data) if at < 0 else at + len(_HEAD_END)
        self.head += data[start:end]
        return end

    def begins(self) -> bool:
        """Whether the parser finds the beginning of a request where one may be."""
        self._has_begun = self._may_begin
        self._may_begin = False
        return self._has_begun

    @property
    def request_line(self) -> bytes:
        """The request's line, as far as it came."""
        return bytes(self.head.lstrip(b"\r\n").partition(b"\r\n")[0])

    @property
    def head_is_whole(self) -> bool:
        """Whether the head has ended, and all of its lines with CR and LF."""
        lines = self.head.replace(b"\r\n", b"")
        return self.head.endswith(_HEAD_END) and b"\r" not in lines and b"\n" not in lines

    def begin_body(self, length_bytes: int | None) -> None:
        """Expect a body; `None`: in chunks."""
        self._in_head = False
        self._body_left_bytes = length_bytes or 0
        self._seam, self._framing_bytes = b"", 0

    def take_content(self, size_bytes: int) -> None:
        """Note what the parser found to be content."""
        self._framing_bytes -= 2 * size_bytes

    @property
    def is_mostly_framing(self) -> bool:
        """Whether a body in chunks has much more framing than content, so that reading it costs more than it brings."""
        return self._framing_bytes > _FREE_FRAMING_BYTES

    def end_message(self) -> None:
        """Expect the next request."""
        self._in_head = True
        self._has_begun = self._may_begin = False
        self.head.clear()
