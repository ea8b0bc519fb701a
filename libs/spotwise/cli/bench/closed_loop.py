"""A closed-loop load: each stream sends its next request after its last answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from spotwise.cli.bench.completion import random_prompt

Answered = TypeVar("Answered")
SendPrompt = Callable[[list[int]], Awaitable[Answered]]


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The size of a closed-loop load: concurrent streams, requests of each stream, and tokens of each request."""

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int


async def run_closed_loop(
    shape: StreamShape,
    rng: random.Random,
    open_stream: Callable[[], AbstractContextManager[SendPrompt[Answered]]],
    answered: Callable[[], Any] = lambda: None,
) -> list[Answered]:
    """Run all streams to their end; returns the answers in order of completion.

    Args:
        open_stream: gives each stream the function that sends a prompt.
        answered: called after each answer.
    """
    answers: list[Answered] = []

    async def stream() -> None:
        with open_stream() as send:
            for _ in range(shape.requests):
                answers.append(await send(random_prompt(rng, shape.input_tokens)))
                answered()

    await asyncio.gather(*(stream() for _ in range(shape.streams)))
    return answers
