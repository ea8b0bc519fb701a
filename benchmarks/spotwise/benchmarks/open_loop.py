"""Sends a schedule of requests to a server, each at its time.

Latency counts from a request's scheduled time, so the client's own delay is included (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.cli.bench.completion import random_prompt, run_completion, stream_completion
from spotwise.cli.bench.load import Answered, run_together
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.client.gateway_client import GatewayClient, RequestRefusedError
from spotwise.cli.errors import CommandError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request.

    Attributes:
        latency_s: from its scheduled time to its whole answer; None for a failure.
        failure: its reason; None for an answer.
        tokens_s: arrival of each token, from the scheduled time; of streamed answers only.
    """

    arrival: TimedRequest
    latency_s: float | None
    failure: str | None = None
    tokens_s: tuple[float, ...] = ()


async def send_at_times(times_s: Sequence[float], send: Callable[[int, float], Awaitable[Answered]]) -> list[Answered]:
    """Send each request at its time, whatever the answers do; returns the answers in the order of `times_s`.

    Args:
        times_s: seconds from the call.
        send: sends the request of this index, from 0, which is due at this time of the monotonic clock.
    """
    started_s = time.monotonic()

    async def send_when_due(index: int, at_s: float) -> Answered:
        due_s = started_s + at_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        return await send(index, due_s)

    return await run_together(send_when_due(index, at_s) for index, at_s in enumerate(times_s))


async def run_open_loop(
    endpoint: ServerEndpoint,
    arrivals: Sequence[TimedRequest],
    finished: Callable[[], Any] = lambda: None,
    *,
    stream: bool = False,
) -> list[Outcome]:
    """Send every request at its time and wait for all answers; outcomes in the order of the arrivals.

    Args:
        finished: called at each end.
        stream: answers are streamed, for the times of tokens; costs the client more.
    """
    prompts = [random_prompt(random.Random(arrival.prompt_seed), arrival.input_tokens) for arrival in arrivals]
    async with GatewayClient(endpoint.url) as client:

        async def send(index: int, due_s: float) -> Outcome:
            arrival, prompt = arrivals[index], prompts[index]
            tokens_s: list[float] = []
            try:
                if stream:
                    await stream_completion(
                        client,
                        endpoint.model,
                        prompt,
                        arrival.output_tokens,
                        lambda: tokens_s.append(time.monotonic() - due_s),
                    )
                else:
                    await run_completion(client, endpoint.model, prompt, arrival.output_tokens)
            except RequestRefusedError as error:
                return Outcome(arrival, None, f"status {error.status}")
            except CommandError as error:
                return Outcome(arrival, None, str(error))
            finally:
                finished()
            return Outcome(arrival, time.monotonic() - due_s, tokens_s=tuple(tokens_s))

        return await send_at_times([arrival.at_s for arrival in arrivals], send)


def failures(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The number of failed requests, by reason."""
    reasons = sorted({outcome.failure for outcome in outcomes if outcome.failure is not None})
    return {reason: sum(outcome.failure == reason for outcome in outcomes) for reason in reasons}


def print_failures(console: Console, failures: Mapping[str, int], where: str = "") -> None:
    """Print the number of failed requests by reason; `where` begins the lines."""
    for reason, count in failures.items():
        console.print(f"{where}{count} requests failed: {reason}", style="yellow", markup=False)
