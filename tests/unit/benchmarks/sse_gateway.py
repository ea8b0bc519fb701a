"""A gateway that answers as configured, right or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import orjson

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"text":" a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def body_of(reader: asyncio.StreamReader) -> Any:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return orjson.loads(await reader.readexactly(length))


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def gateway(*answers: Answer) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A gateway that gives these answers, one after the other; its URL, and the bodies that it was sent."""
    bodies: list[dict[str, Any]] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):  # a test that ends at an error cancels this
            while left:
                try:
                    bodies.append(await body_of(reader))
                except (asyncio.IncompleteReadError, ConnectionError):
                    break
                await left.pop(0)(writer)

    async with serving(serve) as url:
        yield url, bodies


async def whole(writer: asyncio.StreamWriter) -> None:
    """Two tokens, the usage, the end; in pieces that fit no border."""
    data = HEAD + chunk(TOKEN) + chunk(TOKEN) + chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n"
    for start in range(0, len(data), 37):
        writer.write(data[start : start + 37])
        await writer.drain()
        await asyncio.sleep(0)


async def failing(writer: asyncio.StreamWriter) -> None:
    error = b'data: {"error":{"message":"lost","code":"not_recovered"}}\n\n'
    writer.write(HEAD + chunk(TOKEN) + chunk(error) + chunk(DONE) + b"0\r\n\r\n")


async def short(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(TOKEN) + chunk(DONE) + b"0\r\n\r\n")


async def refusing(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")


async def breaking(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + chunk(TOKEN))
    await writer.drain()
    writer.transport.abort()
