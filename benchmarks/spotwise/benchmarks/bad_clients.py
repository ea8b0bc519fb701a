"""Clients that behave badly, on sockets of their own: some never finish a request, some never read their answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import orjson

from spotwise.cli.bench.completion import completion_body, random_prompt
from spotwise.cli.bench.servers import ServerEndpoint

#: A client that was cut off comes back after so long.
_AGAIN_S = 0.2
#: As little of an answer as a socket can be made to take in.
_RECEIVE_BYTES = 4096


@contextlib.asynccontextmanager
async def half_open(endpoint: ServerEndpoint, clients: int) -> AsyncIterator[None]:
    """For the length of a block, so many connections with half a request on each; one that is cut off comes back."""
    request = _request(endpoint, random_prompt(random.Random(1), 100), 16)

    async def one(number: int) -> None:
        part = request[: len(request) // 2] if number % 2 else request[:60]  # half of a body, or of the headers
        while True:
            await _hold(endpoint, part, read=True)
            await asyncio.sleep(_AGAIN_S)

    async with _clients(one, clients):
        yield


@contextlib.asynccontextmanager
async def slow_readers(
    endpoint: ServerEndpoint, clients: int, input_tokens: int, output_tokens: int
) -> AsyncIterator[None]:
    """For the length of a block, so many streams of which the clients read nothing."""
    rng = random.Random(2)
    prompts = [random_prompt(rng, input_tokens) for _ in range(clients)]

    async def one(number: int) -> None:
        await _hold(endpoint, _request(endpoint, prompts[number], output_tokens), read=False)

    async with _clients(one, clients):
        yield


@contextlib.asynccontextmanager
async def _clients(one: Callable[[int], Coroutine[Any, Any, None]], count: int) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hold(endpoint: ServerEndpoint, sent: bytes, *, read: bool) -> None:
    """Connect, send, and keep the connection until the gateway ends it."""
    where = urlsplit(endpoint.url)
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        with contextlib.suppress(OSError):
            await loop.sock_connect(connection, (where.hostname, where.port))
            await loop.sock_sendall(connection, sent)
            if read:
                while await loop.sock_recv(connection, 65536):
                    pass
            else:
                await asyncio.Event().wait()


def _request(endpoint: ServerEndpoint, prompt: list[int], output_tokens: int) -> bytes:
    body = orjson.dumps(completion_body(endpoint.model, prompt, output_tokens, stream=True))
    fields = (
        "POST /v1/completions HTTP/1.1",
        "Host: gateway",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "".join(f"{field}\r\n" for field in (*fields, "")).encode() + body
