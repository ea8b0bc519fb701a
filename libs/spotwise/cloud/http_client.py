"""Carries dialogues with a metadata service out over HTTP.

Every request ends in time, with an answer that may be a failure. Environment proxies and redirects are not used, since metadata
is local to the machine; each request has its own connection.
"""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self, TypeVar

import httpx

from spotwise.cloud.dialogue import Dialogue, HttpAnswer, HttpRequest

T = TypeVar("T")

#: A Kubernetes node with many images may take some hundred KiB; a longer answer is not metadata.
MAX_BODY_BYTES = 4 << 20


class HttpClient:
    """HTTP client of one metadata service.

    Args:
        base_url: URL of the service.
        timeout_s: limit for a complete answer, in addition to the request's `held_s`.
        tls: trusted certificates of an `https` service.
    """

    def __init__(self, base_url: str, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=base_url,
            # Loading the default certificates is slow, and plain HTTP needs none.
            verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            follow_redirects=False,
            timeout=None,
            limits=httpx.Limits(max_keepalive_connections=0),
            headers={"User-Agent": "spotwise", "Accept-Encoding": "identity"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def converse(self, dialogue: Dialogue[T]) -> T:
        """Carry out a dialogue and return its result."""
        try:
            request = next(dialogue)
            while True:
                request = dialogue.send(await self._answer(request))
        except StopIteration as end:
            learned: T = end.value
            return learned

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        limit_s = self._timeout_s + request.held_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._send(request)
        except TimeoutError:
            return HttpAnswer(None, failure=f"no answer within {limit_s:g} s")
        except httpx.ConnectError:
            return HttpAnswer(None, failure="no connection")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            # ValueError: a header cannot be sent.
            return HttpAnswer(None, failure=f"a broken answer ({type(error).__name__})")

    async def _send(self, request: HttpRequest) -> HttpAnswer:
        async with self._client.stream(
            request.method, request.path, headers=dict(request.headers), content=request.body or None
        ) as response:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return HttpAnswer(None, failure=f"an answer of more than {MAX_BODY_BYTES >> 20} MiB")
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpAnswer(response.status_code, bytes(body), headers)
