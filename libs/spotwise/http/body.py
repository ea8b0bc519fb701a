"""Reading a request's body, with bounds: its size, that of all bodies together, what parsing costs, and gzip."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import orjson
from starlette.requests import Request

from spotwise.http.errors import ApiError, bad_request
from spotwise.http.json_text import JsonTooComplexError, require_bounded_json

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


class BodyReader:
    """Reads bodies; bodies held at the same time share a bound.

    Of that a caller has half at most, and no more than it leaves to others; all of it where no keys are required.

    Args:
        max_body_bytes: largest body.
        max_held_bytes: most bytes of large bodies that are being sent, or wait to be understood; twice `max_body_bytes` at
            least.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max(max_held_bytes, 2 * max_body_bytes)
        self._held_by: Counter[str] = Counter()
        self.held_bytes = 0

    @asynccontextmanager
    async def body(self, request: Request, caller: str) -> AsyncIterator[bytearray]:
        """Read a caller's JSON body, perhaps compressed with gzip; as it is without, it counts as held until the context ends.

        Raises:
            ApiError: 400 no gzip, 413 more than `max_body_bytes`, also without gzip, 415 announced as something else than JSON,
                503 too many at once.
        """
        _require_json(request)
        pieces = self._gunzipped(request) if is_gzip(_coding(request)) else request.stream()
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and (len(announced) > _MAX_LENGTH_DIGITS or int(announced) > self._max_body_bytes):
            raise self._too_large()
        body = bytearray()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if len(body) + len(piece) > self._max_body_bytes:
                        raise self._too_large()
                    self._hold(caller, _counted(len(body) + len(piece)) - _counted(len(body)))
                    body += piece
            yield body
        finally:
            self._give_back(caller, _counted(len(body)))

    @contextmanager
    def holding(self, caller: str, size_bytes: int) -> Iterator[None]:
        """Count so many bytes of a caller's as held until the context ends; raises `ApiError`, a 503, where too many are."""
        self._hold(caller, _counted(size_bytes))
        try:
            yield
        finally:
            self._give_back(caller, _counted(size_bytes))

    def _hold(self, caller: str, more_bytes: int) -> None:
        if not more_bytes:
            return
        left_to_others_bytes = self._held_by[caller] if caller else 0
        if self.held_bytes + more_bytes > self._max_held_bytes - left_to_others_bytes:
            raise overloaded("The server is reading too many large requests; try again later.")
        self.held_bytes += more_bytes
        self._held_by[caller] += more_bytes

    def _give_back(self, caller: str, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._held_by[caller] -= size_bytes
        if not self._held_by[caller]:
            del self._held_by[caller]

    async def _gunzipped(self, request: Request) -> AsyncGenerator[bytes, None]:
        gunzip, sent_bytes = Gunzip(), 0
        async for chunk in request.stream():
            sent_bytes += len(chunk)
            if sent_bytes > self._max_body_bytes:
                raise self._too_large()
            for piece in gunzip.pieces(chunk):
                yield piece
                await asyncio.sleep(0)  # streams go on in between
        gunzip.finish()

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body exceeds the limit of {self._max_body_bytes} bytes.", code="request_too_large")


#: Of every body so much does not count: a crowd of large ones shall not keep out all others.
_FREE_BYTES = 64 << 10
#: More digits than any size has; longer numbers take time to convert.
_MAX_LENGTH_DIGITS = 18


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = f"Unsupported media type '{media_type}'; send 'Content-Type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")


def _coding(request: Request) -> str:
    return ", ".join(request.headers.getlist("content-encoding"))


def _counted(body_bytes: int) -> int:
    return max(0, body_bytes - _FREE_BYTES)


def overloaded(message: str) -> ApiError:
    """Return a 503 for work beyond the gateway's own limits."""
    return ApiError(503, message, code="overloaded", headers={"Retry-After": "1"})


def parse_json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a body, a JSON object in UTF-8.

    JSON's own rules hold: no NaN or Infinity, no half of a surrogate pair, no number beyond a double.

    Raises:
        ApiError: 400, not such an object, or too complex a one.
    """
    try:
        require_bounded_json(body)
        parsed = orjson.loads(body)
    except JsonTooComplexError as error:
        raise bad_request(f"The body is too complex: {error}.", code="body_too_complex") from error
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error}."
        raise bad_request(message, code="invalid_json") from error
    if not isinstance(parsed, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return parsed
