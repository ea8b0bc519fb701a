"""Greedy streams whose tokens are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.live.mesh import MODEL


async def stream(
    client: Any, prompt: tuple[int, ...], new_tokens: int, seen: Callable[[int], None], model: str = MODEL
) -> tuple[str, tuple[int, ...]]:
    """One greedy stream's id and tokens; `seen` is called with how many there are so far."""
    request_id, tokens = "", list[int]()
    chunks = await client.completions.create(
        model=model,
        prompt=list(prompt),
        max_tokens=new_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    async for chunk in chunks:
        request_id = chunk.id
        tokens.extend(chunk.choices[0].token_ids or [])
        seen(len(tokens))
    return request_id, tuple(tokens)
