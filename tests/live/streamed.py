"""Streams of three kinds whose tokens are compared with an undisturbed run: greedy, seeded with two choices, with penalties."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.live.mesh import MODEL

#: A stream with so many tokens decodes.
BEGUN = 8


@dataclass
class Streamed:
    """What a client got, by choice.

    Attributes:
        has_begun: set once the first choice has some tokens.
        last_s: Unix time of each choice's last token, and `ended_s` of the end.
        longest_gap_s: the longest wait for tokens of a choice after its first ones.
    """

    request_id: str = ""
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    last_s: dict[int, float] = field(default_factory=dict)
    ended_s: float = 0.0
    longest_gap_s: float = 0.0

    @property
    def tokens(self) -> int:
        """Of all choices."""
        return sum(map(len, self.token_ids.values()))


def bodies(prompts: Sequence[tuple[int, ...]], new_tokens: int) -> list[dict[str, Any]]:
    """Greedy; seeded with two choices and log-probabilities; penalties."""
    seeded = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 2, "logprobs": 1}
    penalties = {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.3}
    kinds: list[dict[str, Any]] = [{"temperature": 0}, seeded, penalties]
    return [
        {"prompt": [*prompt], "max_tokens": new_tokens, **kind} for prompt, kind in zip(prompts, kinds, strict=False)
    ]


async def stream(
    client: Any,
    body: dict[str, Any],
    into: Streamed,
    model: str = MODEL,
    on_chunk: Callable[[], None] = lambda: None,
) -> None:
    """Stream a completion by the real client, which repeats nothing; `on_chunk` is called after each chunk."""
    chunks = await client.completions.create(
        model=model, stream=True, extra_body={"ignore_eos": True, "return_token_ids": True}, **body
    )
    heard_s: dict[int, float] = {}
    async for chunk in chunks:
        into.request_id = chunk.id
        for choice in chunk.choices:
            into.token_ids.setdefault(choice.index, []).extend(choice.token_ids or [])
            if choice.logprobs is not None:
                into.logprobs.setdefault(choice.index, []).extend(choice.logprobs.token_logprobs)
            if choice.finish_reason:
                into.finish[choice.index] = choice.finish_reason
            if choice.token_ids:
                into.last_s[choice.index] = time.time()
            now_s = time.monotonic()
            into.longest_gap_s = max(into.longest_gap_s, now_s - heard_s.get(choice.index, now_s))
            heard_s[choice.index] = now_s
        if len(into.token_ids.get(0, ())) >= BEGUN:
            into.has_begun.set()
        on_chunk()
    into.ended_s = time.time()
