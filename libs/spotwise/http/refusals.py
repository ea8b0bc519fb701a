"""Errors below the application: a refused connection receives the same JSON shape."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from spotwise.http.errors import ApiError
from spotwise.http.request_ids import HEADER as REQUEST_ID_HEADER
from spotwise.http.request_ids import new_request_id


def written(error: ApiError) -> bytes:
    """Return an error as the bytes of a whole answer, after which the connection is closed."""
    response = error.response()
    response.headers[REQUEST_ID_HEADER] = new_request_id()
    response.headers["connection"] = "close"
    lines = [b"%b: %b\r\n" % pair for pair in response.raw_headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", bytes(response.body)])


def too_many_connections() -> ApiError:
    """Return the 503 for a connection beyond the limit."""
    message = "The server has too many connections; try again later."
    return ApiError(503, message, code="too_many_connections", headers={"Retry-After": "1"})


def headers_too_large(most_bytes: int) -> ApiError:
    """Return the 431 for too many bytes."""
    return ApiError(431, f"The request's headers exceed {most_bytes} bytes.", code="headers_too_large")


def too_many_headers(most: int) -> ApiError:
    """Return the 431 for too many headers."""
    return ApiError(431, f"The request has more than {most} headers.", code="headers_too_large")


def too_slow(what: str, seconds: float) -> ApiError:
    """Return the 408 for headers or a body that did not come in time."""
    return ApiError(408, f"The request's {what} did not come within {seconds:g} s.", code="request_timeout")


def invalid_http(problem: str = "") -> ApiError:
    """Return the 400 for bytes that are no request of HTTP/1.1; it says why, where that is known."""
    why = f": {problem}" if problem else ""
    return ApiError(400, f"This is not a valid HTTP/1.1 request{why}.", code="invalid_http")


def unknown_method() -> ApiError:
    """Return the 501 for a method that HTTP knows nothing of."""
    return ApiError(501, "This server does not know the request's method.", code="unknown_method")
