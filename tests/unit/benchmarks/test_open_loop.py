"""The open loop against a server that answers slowly, or not at all."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from rich.console import Console

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.open_loop import failures, print_failures, run_open_loop
from spotwise.cli.bench.servers import ServerEndpoint


@asynccontextmanager
async def completions_server(together: int) -> AsyncIterator[str]:
    """Answers only when so many requests are there at once; a prompt of one token gets a 503, one of two a token too few."""
    waiting = asyncio.Barrier(together)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        body = orjson.loads(await reader.readexactly(length))
        status, produced = "200 OK", body["max_tokens"]
        match len(body["prompt"]):
            case 1:
                status = "503 Service Unavailable"
            case 2:
                produced -= 1
            case _:
                await waiting.wait()
        answer = orjson.dumps({"id": "cmpl-1", "usage": {"completion_tokens": produced}})
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n".encode() + answer
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


async def test_requests_do_not_wait_for_answers() -> None:
    """A server that answers nothing before the last request has come gets the last request."""
    arrivals = [TimedRequest(0.02 * number, 5, 3, f"prompt {number}") for number in range(20)]
    done = []
    async with completions_server(together=20) as url:
        outcomes = await run_open_loop(ServerEndpoint(url, "any"), arrivals, lambda: done.append(1))
    assert [outcome.arrival for outcome in outcomes] == arrivals
    assert len(done) == 20
    # Each counts from its own scheduled time, so the earlier one waited longer for the common moment.
    latencies = [outcome.latency_s for outcome in outcomes]
    assert all(latency is not None and latency > 0 for latency in latencies)
    assert latencies[0] is not None and latencies[0] >= arrivals[-1].at_s


async def test_a_failed_request_is_an_outcome() -> None:
    arrivals = [TimedRequest(0.0, tokens, 3, f"prompt {tokens}") for tokens in (1, 2, 5)]
    async with completions_server(together=1) as url:
        outcomes = await run_open_loop(ServerEndpoint(url, "any"), arrivals)
    assert [outcome.latency_s is None for outcome in outcomes] == [True, True, False]
    assert failures(outcomes) == {"an answer brought 2 tokens where 3 were requested": 1, "status 503": 1}


async def test_a_server_that_is_not_there_is_an_outcome() -> None:
    (outcome,) = await run_open_loop(ServerEndpoint("http://127.0.0.1:1", "any"), [TimedRequest(0.0, 3, 1, "prompt")])
    assert outcome.latency_s is None
    assert outcome.failure


def test_failures_are_told_by_reason() -> None:
    """As they are: a reason in brackets is no mark-up."""
    text = io.StringIO()
    print_failures(Console(file=text, width=160), {"status 503": 2, "[lost]": 1}, "mesh, 3/s: ")
    assert text.getvalue().splitlines() == [
        "mesh, 3/s: 2 requests failed: status 503",
        "mesh, 3/s: 1 requests failed: [lost]",
    ]
