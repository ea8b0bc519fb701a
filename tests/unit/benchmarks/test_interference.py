"""Steady streams beside long prompts: schedule and figures."""

from __future__ import annotations

import random

import pytest

from spotwise.benchmarks.interference import (
    Interference,
    interference_figures,
    long_prompt_times,
    measure_interference,
)
from spotwise.cli.bench.completion import Answer, random_prompt
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.errors import CommandError
from tests.unit.benchmarks.sse_gateway import Answer as ServerAnswer
from tests.unit.benchmarks.sse_gateway import failing, gateway, refusing, whole

SHORT = Interference(
    steady_streams=2,
    steady_input_tokens=3,
    steady_output_tokens=2,
    long_input_tokens=9,
    long_output_tokens=2,
    every_s=0.05,
    seconds=0.12,
)


def test_long_prompts_come_at_fixed_times() -> None:
    """Long prompts are sent at fixed intervals from the start, as long as requests are sent."""
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.0)) == [0.0, 2.0, 4.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.5)) == [0.0, 2.0, 4.0, 6.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=0.5)) == [0.0]
    assert len(long_prompt_times(Interference())) == 20


def test_figures_are_gaps_of_steady_streams_and_first_chunks_of_long_prompts() -> None:
    """A gap does not span two answers; the long prompts' own gaps do not count."""
    steady = [
        Answer(0.0, (1.0, 1.01, 1.03), 3),
        Answer(5.0, (5.5, 5.54), 4),
    ]
    long = [Answer(0.0, (2.0, 9.0), 2), Answer(2.0, (5.0, 9.5), 2), Answer(4.0, (5.0,), 1)]
    figures = interference_figures(steady, long)
    assert figures["itl_p50_ms"] == pytest.approx(20.0)
    assert figures["itl_p99_ms"] == figures["itl_max_ms"] == pytest.approx(40.0)
    assert (figures["long_ttft_p50_ms"], figures["long_ttft_p99_ms"]) == (2000.0, 3000.0)
    assert (figures["steady_requests"], figures["long_requests"]) == (2, 3)
    assert figures["chunks_per_token"] == pytest.approx(5 / 7)


async def test_every_server_gets_the_same_prompts() -> None:
    """A prompt depends on the seed and its request alone, not on the turn in which requests are sent."""
    async with gateway(*[whole] * 10_000) as (url, bodies):
        figures = await measure_interference(ServerEndpoint(url, "any"), SHORT, seed=5)
    sent = [body["prompt"] for body in bodies]
    long = [random_prompt(random.Random(repr((5, ("long", number)))), 9) for number in range(3)]
    first = [random_prompt(random.Random(repr((5, ("steady", index, 0)))), 3) for index in range(2)]
    assert [prompt for prompt in sent if len(prompt) == 9] == long
    assert [prompt in sent for prompt in first] == [True, True]
    assert (figures["steady_requests"], figures["long_requests"]) == (len(sent) - 3, 3)


@pytest.mark.parametrize(("answer", "message"), [(failing, "a stream failed: lost"), (refusing, "status 429")])
async def test_a_server_that_fails_ends_the_run(answer: ServerAnswer, message: str) -> None:
    async with gateway(*[answer] * 100) as (url, _):
        with pytest.raises(CommandError, match=message):
            await measure_interference(ServerEndpoint(url, "any"), SHORT, seed=5)
