"""A client for thousands of streams that takes little CPU from the mesh on the same machine.

One keep-alive connection per stream. Events are not parsed (unlike `cli/client/gateway_client.py`): the bytes show the
first token, the usage and the end. Errors are outcomes, not exceptions.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import orjson

from spotwise.cli.bench.completion import completion_body
from spotwise.cli.client.gateway_access import client_options

_FIRST = b"data: {"
_FAILED = b'data: {"error"'
_END = b"0\r\n\r\n"
_CODE = re.compile(rb'"code":"(\w+)"')
_USAGE = re.compile(rb'"completion_tokens":(\d+)')
#: The usage, the last event and the end of the body are within this many last bytes of an answer.
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """The result of one request.

    Attributes:
        sent_s, first_s, ended_s: on the monotonic clock; `first_s` is `None` without a token.
        tokens: output tokens, from the answer's usage.
        failure: why the answer is incomplete; `None` for a whole one.
        longest_gap_s: between two arrivals of data, from the first token on.
    """

    sent_s: float
    first_s: float | None
    ended_s: float
    tokens: int
    failure: str | None
    longest_gap_s: float = 0.0

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds of each token after the first."""
        if self.first_s is None or self.tokens < 2:
            return None
        return (self.ended_s - self.first_s) / (self.tokens - 1)


class StreamConnection(asyncio.Protocol):
    """One connection to a gateway, for one request after another."""

    def __init__(self, url: str, model: str, opened: Callable[[int], Any]) -> None:
        """Open no connection yet; `opened` is called with +1 at the first token of each stream and -1 at its end."""
        self._model = model
        self._opened = opened
        self._host = urlsplit(url).netloc
        authorization = client_options(url)["headers"].get("Authorization")
        self._key = f"Authorization: {authorization}\r\n" if authorization else ""
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[str | None] | None = None
        self._status = b""
        self._tail = b""
        self._first_s: float | None = None
        self._last_s = self._longest_gap_s = 0.0
        self._failed = ""

    async def stream_completion(self, prompt: list[int], output_tokens: int) -> StreamOutcome:
        """Stream one completion to its end."""
        sent_s = time.monotonic()
        self._status = self._tail = b""
        self._first_s, self._failed, self._longest_gap_s = None, "", 0.0
        failure = await self._exchange(self._request(prompt, output_tokens))
        if self._first_s is not None:
            self._opened(-1)
        usage = _USAGE.search(self._tail)
        tokens = int(usage[1]) if usage else 0
        if failure is None and tokens != output_tokens:
            failure = f"{tokens} tokens where {output_tokens} were requested"
        return StreamOutcome(sent_s, self._first_s, time.monotonic(), tokens, failure, self._longest_gap_s)

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    async def _exchange(self, request: bytes) -> str | None:
        loop = asyncio.get_running_loop()
        try:
            if self._transport is None:
                host, _, port = self._host.rpartition(":")
                await loop.create_connection(lambda: self, host.strip("[]"), int(port))
        except OSError as error:
            return f"cannot connect: {error.strerror or error}"
        assert self._transport is not None  # given by `connection_made`
        self._answer = loop.create_future()
        self._transport.write(request)
        return await self._answer

    def _request(self, prompt: list[int], output_tokens: int) -> bytes:
        body = orjson.dumps(completion_body(self._model, prompt, output_tokens, stream=True))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\n{self._key}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that is open."""
        self._transport = None
        self._done(f"the connection broke: {exc or 'closed by the gateway'}")

    def data_received(self, data: bytes) -> None:
        """Scan for the first token and for the end."""
        if not self._status:
            self._status = data[:15]
        now_s = time.monotonic()
        if self._first_s is not None:
            self._longest_gap_s = max(self._longest_gap_s, now_s - self._last_s)
        elif _FIRST in data:
            self._first_s = now_s
            self._opened(1)
        self._last_s = now_s
        if not self._failed and _FAILED in data:
            self._failed = f"an error in the stream{_code_in(data)}"
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if not self._status.startswith(b"HTTP/1.1 200"):
            # Neither its body nor its end matters.
            self.close()
            self._done(f"status {self._status[9:12].decode(errors='replace')}{_code_in(data)}")
        elif self._tail.endswith(_END):
            self._done(self._failed or None)

    def _done(self, failure: str | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(failure)


def _code_in(data: bytes) -> str:
    found = _CODE.search(data)
    return f": {found[1].decode()}" if found else ""
