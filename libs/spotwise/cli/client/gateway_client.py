"""A client of one server of the API, a gateway's or a peer's, for many requests at a time: streams as events, failures as
errors for the user.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from spotwise.cli.client.gateway_access import client_options
from spotwise.cli.errors import CommandError

_TIMEOUT_S = 600.0
#: Of an answer, in a message.
_SHOWN_CHARACTERS = 200


def decode_event(line: str) -> dict[str, Any] | None:
    """Decode one line of a stream; `None` for a blank line, a comment, an id and `[DONE]`.

    Raises:
        CommandError: the event is an error, with which the server ended the stream, or its data is no JSON object.
    """
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return None
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CommandError(f"a stream cannot be read ({error}): {data[:_SHOWN_CHARACTERS]!r}") from error
    if not isinstance(event, dict):
        raise CommandError(f"a stream cannot be read (an event is no object): {data[:_SHOWN_CHARACTERS]!r}")
    if failure := event.get("error"):
        raise CommandError(
            f"a stream failed: {failure.get('message', failure) if isinstance(failure, dict) else failure}"
        )
    return event


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
        return content.decode(errors="replace")[:_SHOWN_CHARACTERS]


def listed_models(answer: dict[str, Any]) -> list[str]:
    """Return the names in an answer of `/v1/models`."""
    return [str(each["id"]) for each in answer["data"]]


class GatewayClient:
    """A client of the server at `url` (without `/v1`), with any number of connections; an asynchronous context manager.

    Every request raises `CommandError` where the server does not answer, `RequestRefusedError` where it answers with an error.

    Args:
        ca_file: see `client_options`.
        transport: reaches the server; by default over the network.
    """

    def __init__(
        self, url: str, ca_file: Path | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url = url
        self._http = httpx.AsyncClient(
            **client_options(url, ca_file),
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """Return the names of the served models."""
        with request_failures(self._url):
            return listed_models((await self._http.get("/v1/models")).raise_for_status().json())

    async def post(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Send a request, and return its whole answer."""
        with request_failures(self._url):
            answer: dict[str, Any] = (await self._http.post(path, json=body)).raise_for_status().json()
        return answer

    @asynccontextmanager
    async def events(self, path: str, body: dict[str, object]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Send a request whose answer is a stream; the block gets its events as they come, and its end closes the stream.

        Raises:
            CommandError: also where an event is an error.
        """
        with request_failures(self._url):
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    await response.aread()
                    response.raise_for_status()
                yield _events(response)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if (event := decode_event(line)) is not None:
            yield event
