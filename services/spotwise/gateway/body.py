"""Reading a request's body, with a bound."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from spotwise.gateway.errors import ApiError, bad_request


async def read_json_object(request: Request, max_body_bytes: int) -> dict[str, Any]:
    """Read and parse the body, a JSON object in UTF-8.

    JSON's own rules hold: no NaN or Infinity, no half of a surrogate pair, no number beyond a double.

    Raises:
        ApiError: 400 not such an object, 413 more than `max_body_bytes`, 415 announced as something else.
    """
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = f"Unsupported media type '{media_type}'; send 'Content-Type: application/json'."
        raise ApiError(415, message, code="unsupported_media_type")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_body_bytes:
        raise _too_large(max_body_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body_bytes:
            raise _too_large(max_body_bytes)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error}."
        raise bad_request(message, code="invalid_json") from error
    if not isinstance(parsed, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return parsed


def _too_large(max_body_bytes: int) -> ApiError:
    return ApiError(413, f"The body exceeds the limit of {max_body_bytes} bytes.", code="request_too_large")
