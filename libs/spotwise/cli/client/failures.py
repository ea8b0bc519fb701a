"""Requests that failed, for the user: what happened, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import orjson

from spotwise.cli.errors import CommandError


class RequestRefusedError(CommandError):
    """A server answered a request with an error; `status` is that of HTTP."""

    def __init__(self, url: str, status: int, content: bytes) -> None:
        self.status = status
        hint = "; set SPOTWISE_API_KEY to a valid key" if status == httpx.codes.UNAUTHORIZED else ""
        super().__init__(f"{url} refused the request with status {status}: {_message(content)}{hint}")


def failure_of(url: str, error: httpx.HTTPError) -> CommandError:
    """Return what to tell the user about a request to the server at `url`; the content of an answer must have been read."""
    if isinstance(error, httpx.HTTPStatusError):
        return RequestRefusedError(url, error.response.status_code, error.response.content)
    reason = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return CommandError(
            f"the certificate of {url} is not trusted ({reason}); give its authority with --ca FILE, or in SPOTWISE_CA_FILE"
        )
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return CommandError(f"nothing answers at {url} ({reason}); start a mesh with `spotwise up`, or give its --url")
    return CommandError(f"{url} broke off ({reason}); look at `spotwise status`")


@contextmanager
def request_failures(url: str) -> Iterator[None]:
    """Convert any `httpx.HTTPError` of a request to the server at `url` to `CommandError`."""
    try:
        yield
    except httpx.HTTPError as error:
        raise failure_of(url, error) from error


def _message(content: bytes) -> str:
    """Return the message of an error in the API's form, or else the beginning of the answer."""
    try:
        return str(orjson.loads(content)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return content.decode(errors="replace")[:200]
