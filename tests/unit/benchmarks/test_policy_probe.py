"""Tests of the policy probe: request-level and iteration-level batching are distinguished by which request overtakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from spotwise.benchmarks.policy_probe import short_overtakes_long
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError


@asynccontextmanager
async def streaming_server(workers: int, *, request_level: bool) -> AsyncIterator[str]:
    """A stream of one token an iteration; request-level workers take a request only when they are done with the one before."""
    turns = [asyncio.Lock() for _ in range(workers)]
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        tokens = orjson.loads(await reader.readexactly(length))["max_tokens"]
        turn = turns[came % workers] if request_level else asyncio.Lock()
        came += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        async with turn:
            for _ in range(tokens):
                writer.write(b'data: {"choices": [{"text": "a"}], "usage": null}\n\n')
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.write(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n' % tokens)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("request_level", [True, False])
async def test_a_short_request_overtakes_only_where_it_may_join(workers: int, request_level: bool) -> None:
    """The probe works with one worker and with several, each with a long request."""
    async with streaming_server(workers, request_level=request_level) as url:
        assert await short_overtakes_long(ServerEndpoint(url, "any"), workers) is not request_level


async def test_a_server_that_is_gone_ends_the_probe_with_one_error() -> None:
    async with streaming_server(1, request_level=False) as url:
        pass
    with pytest.raises(CommandError):
        await short_overtakes_long(ServerEndpoint(url, "any"), 2)
