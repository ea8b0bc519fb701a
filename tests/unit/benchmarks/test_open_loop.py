"""Schedules, the open loop that follows them, and samples taken meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spotwise.benchmarks.arrivals import TimedRequest, UniformSizes, poisson_arrivals, storm
from spotwise.benchmarks.heavy_tails import all_at_once, bursts
from spotwise.benchmarks.open_loop import failures, print_failures, run_open_loop
from spotwise.benchmarks.sampling import sampled
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.studies.fastserve.job_sizes import ZipfSizes
from tests.unit.benchmarks.sse_gateway import body_of, serving


@asynccontextmanager
async def completions_server(together: int) -> AsyncIterator[str]:
    """Answers only when so many requests are there at once; a prompt of one token gets a 503, one of two a token too few."""
    waiting = asyncio.Barrier(together)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = await body_of(reader)
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

    async with serving(serve) as url:
        yield url


async def test_requests_do_not_wait_for_answers() -> None:
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


async def test_samples_are_taken_as_long_as_the_block_lasts() -> None:
    taken = 0
    thrice = asyncio.Event()

    async def look() -> None:
        nonlocal taken
        taken += 1
        if taken == 3:
            thrice.set()

    async with sampled(look, 0.0):
        await thrice.wait()
    at_end = taken
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == at_end >= 3


async def test_a_sampler_that_fails_is_a_failure_of_the_measurement() -> None:
    ran_on = False

    async def look() -> None:
        raise RuntimeError("no member there")

    with pytest.raises(RuntimeError, match="no member there"):
        async with sampled(look, 0.0):
            await asyncio.sleep(0.01)
            ran_on = True
    assert ran_on


async def test_a_cancellation_that_a_look_would_lose_is_not_relied_on() -> None:
    """A client that closes its channel may lose one on its way: the block would wait for ever."""
    under_way, looks = asyncio.Event(), 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            with contextlib.suppress(asyncio.CancelledError):
                under_way.set()
                await asyncio.sleep(0.01)

    async with asyncio.timeout(2):
        async with sampled(look, 0.0):
            await under_way.wait()
    assert looks == 1


seeds = st.integers(0, 1000)


@given(st.floats(0.1, 50), st.floats(1, 20), seeds)
def test_a_schedule_is_its_seed(rate: float, seconds: float, seed: int) -> None:
    arrivals = poisson_arrivals(rate, seconds, seed, UniformSizes())
    assert arrivals == poisson_arrivals(rate, seconds, seed, UniformSizes())
    assert arrivals != poisson_arrivals(rate, seconds, seed + 1, UniformSizes())


@given(st.floats(0.1, 50), st.floats(1, 20), seeds)
def test_arrivals_are_in_order_and_in_bounds(rate: float, seconds: float, seed: int) -> None:
    """There is at least one arrival, times ascend within the window (a single first one may lie after it), lengths
    keep their bounds.
    """
    arrivals = poisson_arrivals(rate, seconds, seed, UniformSizes((3, 9), (2, 4)))
    assert arrivals
    times = [arrival.at_s for arrival in arrivals]
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    assert all(at_s < seconds for at_s in times[1:])
    assert all(3 <= arrival.input_tokens <= 9 and 2 <= arrival.output_tokens <= 4 for arrival in arrivals)


def test_gaps_are_exponential() -> None:
    times = [arrival.at_s for arrival in poisson_arrivals(5.0, 4000.0, 1, UniformSizes())]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)


def test_lengths_are_uniform_as_in_orca() -> None:
    arrivals = storm(20_000, 1, UniformSizes())
    assert {arrival.input_tokens for arrival in arrivals} == set(range(32, 513))
    assert {arrival.output_tokens for arrival in arrivals} == set(range(1, 129))


def test_another_rate_brings_the_same_lengths_but_other_prompts() -> None:
    def lengths(arrivals: list[TimedRequest]) -> list[tuple[int, int]]:
        return [(arrival.input_tokens, arrival.output_tokens) for arrival in arrivals]

    slow, fast = (poisson_arrivals(rate, 60.0, 7, UniformSizes()) for rate in (1.0, 4.0))
    assert lengths(slow) == lengths(fast)[: len(slow)]
    prompts = [arrival.prompt_seed for arrival in (*slow, *fast, *storm(10, 7, UniformSizes()))]
    assert len(set(prompts)) == len(prompts)


ZIPF = ZipfSizes(64, 512, 1.5)


@given(st.floats(0.1, 50), st.floats(0.5, 5), st.integers(0, 1000))
def test_bursts_are_of_their_seed(rate: float, cv: float, seed: int) -> None:
    arrivals = bursts(30, rate, cv, seed, ZIPF)
    assert arrivals == bursts(30, rate, cv, seed, ZIPF)
    assert arrivals != bursts(30, rate, cv, seed + 1, ZIPF)
    faster, storm = bursts(30, 2 * rate, cv, seed, ZIPF), all_at_once(30, seed, ZIPF)
    lengths = [(each.input_tokens, each.output_tokens) for each in arrivals]
    assert lengths == [(each.input_tokens, each.output_tokens) for each in faster]
    assert lengths == [(each.input_tokens, each.output_tokens) for each in storm]
    assert [each.at_s / 2 for each in arrivals] == pytest.approx([each.at_s for each in faster])
    assert {each.at_s for each in storm} == {0.0}


def test_prompts_differ_and_are_not_those_of_the_storm() -> None:
    """Prompts differ from the storm's, so that its leftovers in a prefix cache give no side an advantage."""
    storm, arrivals = all_at_once(20, 1, ZIPF), bursts(20, 2.0, 1.0, 1, ZIPF)
    assert len({each.prompt_seed for each in (*storm, *arrivals)}) == 40
