"""Clients that leave: whatever phase their request is in, everything held for it comes free."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx

from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import mixed_prompts


def test_a_stream_that_is_dropped_stops_its_sequence(mesh: LiveMesh) -> None:
    """Long before its 2,000 tokens are written, the workers hold nothing for it."""
    prompt: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}
    with httpx.stream("POST", f"{mesh.url}/v1/completions", json={**prompt, "stream": True}, timeout=30.0) as stream:
        lines = stream.iter_lines()
        for _ in range(6):
            next(lines)
        assert any(member.engine and member.engine.engine_sequences for member in mesh.members())
    mesh.wait_until_idle()


def test_a_request_without_stream_that_is_dropped_stops_too(mesh: LiveMesh) -> None:
    """The client of a plain request gives up waiting."""
    body: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True}
    try:
        httpx.post(f"{mesh.url}/v1/completions", json=body, timeout=1.0)
    except httpx.ReadTimeout:
        mesh.wait_until_idle()
    else:
        raise AssertionError("2,000 tokens within a second")


def test_a_storm_of_clients_that_leave_at_any_moment(mesh: LiveMesh) -> None:
    """60 clients leave after 0 to 800 ms, in the queue, in prefill, in the hand-off or in decode."""
    rng = random.Random(3)
    prompts = mixed_prompts(32, 700)

    async def leave_early(client: httpx.AsyncClient, number: int) -> None:
        body = {
            "model": MODEL,
            "prompt": list(prompts[number % 32]),
            "max_tokens": 300,
            "ignore_eos": True,
            "stream": number % 3 != 0,
            "n": 1 + number % 2,
        }
        await asyncio.sleep(rng.random() * 2)
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(rng.random() * 0.8)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

    async def storm() -> None:
        async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0) as client:
            await asyncio.gather(*(leave_early(client, number) for number in range(60)))

    asyncio.run(storm())
    mesh.wait_until_idle()
    answer = mesh.client().completions.create(model=MODEL, prompt="Still there?", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 3
