"""A client of one server of the API, a gateway's or a peer's, for many requests at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from spotwise.cli.client.events import decode_event
from spotwise.cli.client.failures import request_failures
from spotwise.cli.client.gateway_access import client_options

_TIMEOUT_S = 600.0


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
