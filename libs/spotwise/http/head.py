"""Checks a request's head as HTTP/1.1 requires beyond the parser (RFC 9110, RFC 9112), and refuses it.

A proxy in front may read such a head otherwise than this server, and take the end of one request for the beginning of another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

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


_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rb"(?P<method>" + _TOKEN + rb") (?P<target>[\x21-\x7e]+) HTTP/(?P<version>[0-9]\.[0-9])")
_ESCAPED = rb"%[0-9A-Fa-f]{2}"
_NAME = rb"(?:[0-9A-Za-z._~-]|" + _ESCAPED + rb")"
_PORT = rb"(?::[0-9]*)?"
_IP_LITERAL = rb"\[[0-9A-Fa-f:.]+\]"
_HOST = re.compile(rb"(?:" + _IP_LITERAL + rb"|" + _NAME + rb"*)" + _PORT)
_AUTHORITY = rb"(?:" + _IP_LITERAL + rb"|" + _NAME + rb"+)" + _PORT
_PATH = rb"(?:[0-9A-Za-z._~!$&'()*+,;=:@/\[\]-]|" + _ESCAPED + rb")*"
_QUERY = rb"(?:\?(?:[0-9A-Za-z._~!$&'()*+,;=:@/?\[\]-]|" + _ESCAPED + rb")*)?"
_ORIGIN_FORM = re.compile(rb"/" + _PATH + _QUERY)
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://" + _AUTHORITY + rb"(?P<rest>(?:/" + _PATH + rb")?" + _QUERY + rb")")
_VERSIONS = (b"1.0", b"1.1")
#: Fields with one value on which this server acts: of two, a proxy may act on the other.
_SINGLE = (
    b"authorization",
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"idempotency-key",
    b"last-event-id",
    b"transfer-encoding",
    b"x-api-key",
    b"x-request-timeout",
    b"x-spotwise-resumable",
)

Headers = Sequence[tuple[bytes, bytes]]


def is_request_line(line: bytes) -> bool:
    """Whether a request may begin like this, be its method known or not."""
    return _LINE.fullmatch(line) is not None


def origin_form(line: bytes) -> bytes:
    """Return the path and query that a request's line names.

    Raises:
        ApiError: 400, it is no such line, or its target none of this server's; 505, it is of another version.
    """
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise invalid_http("its first line is not a method, a target and a version, with one blank between them")
    if parts["version"] not in _VERSIONS:
        message = "This server speaks HTTP/1.1 and HTTP/1.0."
        raise ApiError(505, message, code="unsupported_http_version")
    method, target = parts["method"], parts["target"]
    if method == b"CONNECT":
        raise invalid_http("this server is no proxy")
    if _ORIGIN_FORM.fullmatch(target) or (target == b"*" and method == b"OPTIONS"):
        return target
    if absolute := _ABSOLUTE_FORM.fullmatch(target):
        rest: bytes = absolute["rest"]
        return rest if rest.startswith(b"/") else b"/" + rest
    raise invalid_http("its target is neither a path nor an http URL, or has characters that these have not")


def body_length(version: str, headers: Headers) -> int | None:
    """Check a request's fields; return how many bytes its body has, `None` where it is in chunks.

    Args:
        version: HTTP version.
        headers: names in lower case, with their values.

    Raises:
        ApiError: 400, one is missing, there twice, or wrong; 417, an expectation that is not met; 501, an unknown coding.
    """
    counts = Counter(name for name, _ in headers)
    for name in _SINGLE:
        if counts[name] > 1:
            raise invalid_http(f"it has {counts[name]} fields '{name.decode()}'")
    values = dict(headers)
    host = values.get(b"host")
    if host is None and version != "1.0":
        raise invalid_http("it has no field 'host'")
    if host is not None and not _HOST.fullmatch(host):
        raise invalid_http("its 'host' is no host and port")
    expected = values.get(b"expect", b"100-continue")
    if version != "1.0" and expected.lower() != b"100-continue":
        message = "The only expectation that this server meets is '100-continue'."
        raise ApiError(417, message, code="expectation_failed")
    if (codings := values.get(b"transfer-encoding")) is not None:
        if version == "1.0" or b"content-length" in values:
            raise invalid_http("it has a 'transfer-encoding' beside a 'content-length', or in HTTP/1.0")
        _require_chunks_alone(codings)
        return None
    length = values.get(b"content-length", b"0")
    if not length.isdigit():
        raise invalid_http("its 'content-length' is no number")
    return int(length)


def _require_chunks_alone(codings: bytes) -> None:
    *others, last = (coding.strip(b" \t").lower() for coding in codings.split(b","))
    if last != b"chunked" or last in others:
        raise invalid_http("its 'transfer-encoding' does not end with 'chunked', or has it twice")
    if others:
        message = "The only transfer coding that this server knows is 'chunked'."
        raise ApiError(501, message, code="unsupported_transfer_coding")
