"""Deadlines of requests: `X-Request-Timeout`, seconds from the request's arrival at the gateway.

`X-Stainless-Read-Timeout`, which OpenAI's clients send by themselves, is none: it bounds the silence between two events of a
stream, and not the answer. A client that gives up for it disconnects, which cancels its request anyway.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from spotwise.http.errors import bad_request

HEADER = "x-request-timeout"
#: Nine digits: thirty years.
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def deadline_of(headers: Headers, arrived_unix_s: float) -> float | None:
    """Return the Unix time at which a request's client gives up; `None` without the header.

    Raises:
        ApiError: 400, the header is no positive number of seconds, or there are several.
    """
    given = headers.getlist(HEADER)
    if not given:
        return None
    seconds = float(given[0]) if len(given) == 1 and _SECONDS.fullmatch(given[0].strip()) else 0.0
    if seconds <= 0.0:
        raise bad_request(
            f"Invalid value for the header '{HEADER}': must be one positive number of seconds, such as 30 or 2.5.",
            HEADER,
            "invalid_value",
        )
    return arrived_unix_s + seconds
