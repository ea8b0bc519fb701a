"""A closed-loop load: each stream sends its next request after its last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The size of a closed-loop load: concurrent streams, requests of each stream, and tokens of each request."""

    streams: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int


async def run_closed_loop(
    streams: int,
    continues: Callable[[int], bool],
    send: Callable[[int, int], Awaitable[Answered]],
    answered: Callable[[], Any] = lambda: None,
) -> list[Answered]:
    """Run all streams to their end; returns the answers in order of completion.

    Args:
        continues: whether a stream sends its request of this number, from 0.
        send: sends a request, of this stream's index and this number.
        answered: called after each answer.
    """
    answers: list[Answered] = []

    async def stream(index: int) -> None:
        number = 0
        while continues(number):
            answers.append(await send(index, number))
            answered()
            number += 1

    await run_together(map(stream, range(streams)))
    return answers


async def run_together(requests: Iterable[Coroutine[Any, Any, Answered]]) -> list[Answered]:
    """Await all; the first failure cancels the others and is raised as it is, not in a `TaskGroup`'s group."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
