"""Reading a request's body, with bounds: its size, that of all bodies together, and what parsing it may cost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.requests import Request

from spotwise.gateway.errors import ApiError, bad_request
from spotwise.gateway.json_shape import JsonTooComplexError, require_bounded_json


class BodyReader:
    """Reads bodies; bodies held at the same time share a bound.

    Args:
        max_body_bytes: largest body.
        max_held_bytes: most bytes of large bodies that are being sent, or wait to be understood.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max(max_held_bytes, max_body_bytes)
        self.held_bytes = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytearray]:
        """Read a body of JSON; it counts as held until the context ends.

        Raises:
            ApiError: 413 more than `max_body_bytes`, 415 announced as something else than plain JSON, 503 too many at once.
        """
        self._require_plain_json(request)
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and (len(announced) > _MAX_LENGTH_DIGITS or int(announced) > self._max_body_bytes):
            raise self._too_large()
        body = bytearray()
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > self._max_body_bytes:
                    raise self._too_large()
                more_bytes = _counted(len(body) + len(chunk)) - _counted(len(body))
                if self.held_bytes + more_bytes > self._max_held_bytes:
                    raise overloaded("The server is reading too many large requests; try again later.")
                self.held_bytes += more_bytes
                body += chunk
            yield body
        finally:
            self.held_bytes -= _counted(len(body))

    def _require_plain_json(self, request: Request) -> None:
        media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            message = f"Unsupported media type '{media_type}'; send 'Content-Type: application/json'."
            raise ApiError(415, message, code="unsupported_media_type")
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            message = f"Unsupported content encoding '{coding}'; send the body as it is, without 'Content-Encoding'."
            raise ApiError(415, message, code="unsupported_content_encoding", headers={"Accept-Encoding": "identity"})

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The body exceeds the limit of {self._max_body_bytes} bytes.", code="request_too_large")


#: Of every body so much does not count: a crowd of large ones shall not keep out all others.
_FREE_BYTES = 64 << 10
#: More digits than any size has; longer numbers take time to convert.
_MAX_LENGTH_DIGITS = 18


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
