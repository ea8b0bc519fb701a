"""Bodies that were compressed with gzip, taken apart in small pieces: a short one may become a thousand times as long."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from spotwise.http.errors import ApiError, bad_request

#: Names of gzip (RFC 9110, section 8.4.1.3).
_GZIP = frozenset({"gzip", "x-gzip"})
#: Largest piece, so that the caller can count, and let others run, in between.
PIECE_BYTES = 64 << 10
_CODE = "invalid_content_encoding"


def is_gzip(coding: str) -> bool:
    """Whether a `Content-Encoding` is gzip, and not a body as it is.

    Raises:
        ApiError: 415, it is neither.
    """
    name = coding.strip().lower()
    if name in _GZIP:
        return True
    if name not in ("", "identity"):
        message = f"Unsupported content encoding '{name}'; send 'Content-Encoding: gzip', or the body as it is."
        raise ApiError(415, message, code="unsupported_content_encoding", headers={"Accept-Encoding": "gzip, identity"})
    return False


class Gunzip:
    """Takes one body of gzip apart."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what the next part of the body holds, in pieces.

        Raises:
            ApiError: 400, it is no gzip, or something follows on its end.
        """
        waiting = chunk
        while not self._inflate.eof:
            try:
                piece = self._inflate.decompress(waiting, PIECE_BYTES)
            except zlib.error as error:
                raise bad_request(f"The body is not valid gzip: {error}.", code=_CODE) from error
            waiting = self._inflate.unconsumed_tail
            if piece:
                yield piece
            if not waiting and len(piece) < PIECE_BYTES:
                return
        if waiting or self._inflate.unused_data:
            raise bad_request("Something follows on the end of the body's gzip.", code=_CODE)

    def finish(self) -> None:
        """Take the end of the body.

        Raises:
            ApiError: 400, its gzip goes on.
        """
        if not self._inflate.eof:
            raise bad_request("The body ends in the midst of its gzip.", code=_CODE)
