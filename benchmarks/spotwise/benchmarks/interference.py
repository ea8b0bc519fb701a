"""Interference of long prompts with running decodes, which phase splitting avoids (Splitwise, section III).

Steady streams send their next request after each answer, while a long prompt arrives at fixed intervals, in an open loop. The
figures: gaps between a steady stream's chunks, and the long prompts' time to first token.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from spotwise.benchmarks.open_loop import send_at_times
from spotwise.cli.bench.completion import Answer, random_prompt, stream_completion
from spotwise.cli.bench.load import run_closed_loop, run_together
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.core.percentile import percentile


@dataclass(frozen=True, slots=True)
class Interference:
    """The load's shape; streams that run at `seconds` end their answer.

    Attributes:
        every_s: from one long prompt to the next.
        seconds: how long requests are sent.
    """

    steady_streams: int = 4
    steady_input_tokens: int = 64
    steady_output_tokens: int = 256
    long_input_tokens: int = 2048
    long_output_tokens: int = 8
    every_s: float = 2.0
    seconds: float = 40.0

    @property
    def streams_at_once(self) -> int:
        """The steady streams, and a long prompt for each; further ones wait."""
        return 2 * self.steady_streams

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return max(
            self.steady_input_tokens + self.steady_output_tokens, self.long_input_tokens + self.long_output_tokens
        )


async def measure_interference(endpoint: ServerEndpoint, shape: Interference, seed: int) -> dict[str, float]:
    """Run the load once; its figures by name, milliseconds; raises `CommandError` where the server fails."""
    async with GatewayClient(endpoint.url) as client:
        end_s = time.monotonic() + shape.seconds

        async def send(input_tokens: int, output_tokens: int, *which: object) -> Answer:
            # Seeded by the request, not by its turn: every server gets the same prompts.
            rng = random.Random(repr((seed, which)))
            return await stream_completion(client, endpoint.model, random_prompt(rng, input_tokens), output_tokens)

        def steady_request(stream: int, turn: int) -> Awaitable[Answer]:
            return send(shape.steady_input_tokens, shape.steady_output_tokens, "steady", stream, turn)

        def long_prompt(number: int, _: float) -> Awaitable[Answer]:
            return send(shape.long_input_tokens, shape.long_output_tokens, "long", number)

        steady, long = await run_together(
            (
                run_closed_loop(shape.steady_streams, lambda _: time.monotonic() < end_s, steady_request),
                send_at_times(long_prompt_times(shape), long_prompt),
            )
        )
    return interference_figures(steady, long)


def long_prompt_times(shape: Interference) -> list[float]:
    """The arrival times of long prompts, seconds: from 0 at fixed intervals, while requests are sent."""
    times = [0.0]
    while (following := len(times) * shape.every_s) < shape.seconds:
        times.append(following)
    return times


def interference_figures(steady: Sequence[Answer], long: Sequence[Answer]) -> dict[str, float]:
    """Figures of one run by name, milliseconds; chunks per token shows whether bundled tokens hide gaps."""
    gaps_ms = [1000 * gap_s for answer in steady for gap_s in answer.itl_s]
    ttft_ms = [1000 * answer.ttft_s for answer in long]
    return {
        "itl_p50_ms": statistics.median(gaps_ms),
        "itl_p99_ms": percentile(gaps_ms, 99),
        "itl_max_ms": max(gaps_ms),
        "long_ttft_p50_ms": statistics.median(ttft_ms),
        "long_ttft_p99_ms": percentile(ttft_ms, 99),
        "chunks_per_token": sum(len(answer.arrivals_s) for answer in steady)
        / sum(answer.output_tokens for answer in steady),
        "steady_requests": len(steady),
        "long_requests": len(long),
    }
