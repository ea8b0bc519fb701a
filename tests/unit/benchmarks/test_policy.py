"""What `bench dev policy` makes of outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.open_loop import Outcome
from spotwise.benchmarks.policy import figures, requests_per_s
from spotwise.benchmarks.policy_probe import short_overtakes_long
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError
from tests.unit.benchmarks.sse_gateway import body_of, serving


def outcome(at_s: float, tokens_s: tuple[float, ...], asked: int) -> Outcome:
    return Outcome(TimedRequest(at_s, 5, asked, "p"), tokens_s[-1], tokens_s=tokens_s)


def test_times_count_from_when_a_job_was_to_be_sent() -> None:
    """Per job and per token; the tokens' rate is over the whole run, from the first arrival to the last end."""
    found = figures([outcome(1.0, (1.0, 2.0, 3.0, 4.0), 4), outcome(3.0, (2.0, 6.0), 2)])
    assert found["mean JCT, s"] == 5.0
    assert found["mean JCT per token, s"] == 2.0
    assert (found["JCT p50, s"], found["JCT p99, s"]) == (4.0, 6.0)
    assert (found["TTFT p50, s"], found["TTFT p99, s"]) == (1.0, 2.0)
    assert found["output tokens/s while requests come"] == 2 / (3.0 - 1.0)  # those at 2 and 3 s
    assert found["output tokens/s to the last answer"] == 6 / (9.0 - 1.0)


def test_a_chunk_may_be_several_tokens() -> None:
    found = figures([outcome(0.0, (1.0, 2.0), 6), outcome(2.0, (1.0,), 1)])
    assert found["output tokens/s while requests come"] == 6 / 2


def test_capacity_is_measured_in_the_middle_of_a_storm() -> None:
    """Two tokens a second but for slow edges; jobs of ten tokens: a fifth of a request a second."""
    early, late = [0.5 * number for number in range(50)], [25 + 0.5 * number for number in range(45)]
    last = [60.0, 70.0, 80.0, 90.0, 100.0]
    times = [*early, *late, *last]
    storm = [outcome(0.0, tuple(times[first : first + 10]), 10) for first in range(0, 100, 10)]
    assert requests_per_s(storm) == pytest.approx(0.2)


def test_a_storm_without_figures_is_refused() -> None:
    with pytest.raises(CommandError, match="--requests"):
        requests_per_s([outcome(0.0, (1.0,), 1)])


@asynccontextmanager
async def streaming_server(workers: int, *, request_level: bool) -> AsyncIterator[str]:
    """A stream of one token an iteration; request-level workers take a request only when they are done with the one before."""
    turns = [asyncio.Lock() for _ in range(workers)]
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        tokens = (await body_of(reader))["max_tokens"]
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

    async with serving(serve) as url:
        yield url


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("request_level", [True, False])
async def test_a_short_request_overtakes_only_where_it_may_join(workers: int, request_level: bool) -> None:
    async with streaming_server(workers, request_level=request_level) as url:
        assert await short_overtakes_long(ServerEndpoint(url, "any"), workers) is not request_level


async def test_a_server_that_is_gone_ends_the_probe_with_one_error() -> None:
    async with streaming_server(1, request_level=False) as url:
        pass
    with pytest.raises(CommandError):
        await short_overtakes_long(ServerEndpoint(url, "any"), 2)
