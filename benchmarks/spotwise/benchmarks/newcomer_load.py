"""Short prompts beside a long one: what a newcomer waits while a prompt is computed that takes many seconds.

Each newcomer meets a server that computes nothing else, or nothing but the long prompt. No prompt is sent twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from spotwise.benchmarks.contention import CoreUse
from spotwise.cli.bench.completion import Answer, random_prompt, stream_completion
from spotwise.cli.bench.servers import ServerEndpoint
from spotwise.cli.client.gateway_client import GatewayClient
from spotwise.cli.errors import CommandError

#: Servers whose processes take less than this share of one core compute nothing.
_IDLE_CORES = 0.3
_LOOK_S = 0.5
#: A server that has not ended an abandoned prompt by then never will.
_SETTLE_S = 180.0


class Situation(StrEnum):
    """What else the server has to do when a newcomer comes."""

    ALONE = "alone"
    BESIDE = "beside"
    ABANDONED = "abandoned"

    @property
    def description(self) -> str:
        """The situation in a report."""
        return {
            Situation.ALONE: "alone",
            Situation.BESIDE: "while the long prompt is computed",
            Situation.ABANDONED: "once the long prompt's client has gone",
        }[self]


@dataclass(frozen=True, slots=True)
class NewcomerShape:
    """The load's shape.

    Attributes:
        newcomer_tokens: lengths of the prompts whose first token is measured.
        after_s: from the long prompt to the newcomer; the long one's client leaves then, where it leaves.
        repetitions: repetitions of each newcomer in each situation.
    """

    newcomer_tokens: tuple[int, ...] = (100, 1000)
    long_tokens: int = 7000
    output_tokens: int = 8
    after_s: float = 3.0
    repetitions: int = 2

    @property
    def context_tokens(self) -> int:
        """The longest prompt with its answer."""
        return max(self.long_tokens, *self.newcomer_tokens) + self.output_tokens

    @property
    def requests(self) -> int:
        """Measured requests of one run."""
        return 1 + self.repetitions * len(self.newcomer_tokens) * len(Situation)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """One measured request; the long prompt counts as a newcomer that is alone."""

    situation: Situation
    prompt_tokens: int
    ttft_s: float


async def measure_newcomers(
    endpoint: ServerEndpoint,
    shape: NewcomerShape,
    seed: int,
    answered: Callable[[], Any] = lambda: None,
    settle: Callable[[], Awaitable[None]] | None = None,
) -> list[Newcomer]:
    """Run the load once; equal seeds give equal prompts.

    Args:
        answered: called after each measured request.
        settle: waits until the server computes nothing; by default, until the processes that this one started are idle.

    Raises:
        CommandError: a request failed, or the long prompt was answered before a newcomer came.
    """
    settle = _until_idle if settle is None else settle
    measured = []
    async with GatewayClient(endpoint.url) as client:

        async def send(tokens: int, *which: object) -> Answer:
            # Seeded by the request, not by its turn: every server gets the same prompts.
            prompt = random_prompt(random.Random(repr((seed, tokens, which))), tokens)
            return await stream_completion(client, endpoint.model, prompt, shape.output_tokens)

        async def measure(situation: Situation, tokens: int, repetition: int) -> None:
            await settle()
            which = (situation.value, repetition)
            if situation is Situation.ALONE:
                answer = await send(tokens, *which)
            else:
                long = asyncio.create_task(send(shape.long_tokens, "long", tokens, *which))
                leaves = situation is Situation.ABANDONED
                answer = await _beside(long, partial(send, tokens, *which), shape.after_s, leaves=leaves)
            measured.append(Newcomer(situation, tokens, answer.ttft_s))
            answered()

        for tokens in shape.newcomer_tokens:
            await send(tokens, "warm-up")
        await measure(Situation.ALONE, shape.long_tokens, 0)
        for repetition in range(shape.repetitions):
            for situation in Situation:
                for tokens in shape.newcomer_tokens:
                    await measure(situation, tokens, repetition)
        await settle()
    return measured


async def _beside(
    long: asyncio.Task[Answer], newcomer: Callable[[], Awaitable[Answer]], after_s: float, *, leaves: bool
) -> Answer:
    """Send the newcomer so long after the long prompt, whose client leaves before it, or at the newcomer's last token."""
    try:
        await asyncio.wait((long,), timeout=after_s)
        if long.done():
            long.result()  # its error comes first
            raise CommandError(
                f"the long prompt was answered within {after_s:g} s, before a newcomer came; make it longer with "
                "--long-tokens, or let newcomers come earlier with --after"
            )
        if leaves:
            await _cancelled(long)
        answer = await newcomer()
        if long.done() and not leaves:
            long.result()
        return answer
    finally:
        await _cancelled(long)


async def _cancelled(request: asyncio.Task[Answer]) -> None:
    request.cancel()
    await asyncio.wait((request,))


async def _until_idle() -> None:
    deadline_s = time.monotonic() + _SETTLE_S
    before = CoreUse.so_far()
    while True:
        await asyncio.sleep(_LOOK_S)
        now = CoreUse.so_far()
        if now.own_cores_since(before) < _IDLE_CORES:
            return
        if now.at_s > deadline_s:
            raise CommandError(f"the server still computes {_SETTLE_S:g} s after its last client has gone")
        before = now
