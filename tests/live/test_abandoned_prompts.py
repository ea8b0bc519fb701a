"""Long prompts whose clients go, or give up: what arrives next waits for one part of them, not for the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from spotwise.core.messages.members import WorkerLoad
from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh
from tests.live.oracle import mixed_prompts

#: Of the 5,825 that the mesh's KV holds.
LONG = 5000
#: Prompt tokens of an iteration without decodes on a processor, where a token takes milliseconds.
PART = 256
ONE_TOKEN: dict[str, Any] = {"model": MODEL, "max_tokens": 1}


def worker_of(mesh: LiveMesh) -> tuple[WorkerLoad, int]:
    """The only worker's report, and its finished iterations."""
    for status in mesh.members():
        if (load := status.member_now.load) is not None and status.engine is not None:
            return load, status.engine.iterations
    raise AssertionError("there is no worker")


async def leave_once_it_is_computed(mesh: LiveMesh, body: dict[str, Any]) -> None:
    """Close the connection while the prompt is computed."""
    async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0) as client:
        request = asyncio.create_task(client.post("/v1/completions", json=body))
        while not (await asyncio.to_thread(worker_of, mesh))[0].computing_prompt_tokens:
            assert not request.done(), request.result().text
            await asyncio.sleep(0.05)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


def give_up_at_its_deadline(mesh: LiveMesh, body: dict[str, Any]) -> None:
    """Wait for an answer for two seconds at most, which is the gateway's to keep."""
    answer = httpx.post(f"{mesh.url}/v1/completions", json=body, headers={"X-Request-Timeout": "2"}, timeout=60.0)
    assert answer.status_code == 504


def test_an_abandoned_prompt_ends_at_the_next_cut(tmp_path: Path) -> None:
    """By its client or at its deadline: the next request is answered though most of the long prompt was never computed. How
    much was is counted in iterations, none of which has more of it than `PART` tokens.
    """
    short = {**ONE_TOKEN, "prompt": list(mixed_prompts(1, 40)[0])}
    with LiveMesh(tmp_path, *ONE_MIXED) as mesh:
        for number, by_deadline in enumerate((False, True)):
            long = {**ONE_TOKEN, "prompt": [1000 + (7 * place + number) % 20_000 for place in range(LONG)]}
            _, before = worker_of(mesh)
            if by_deadline:
                give_up_at_its_deadline(mesh, long)
            else:
                asyncio.run(leave_once_it_is_computed(mesh, long))
            answer = mesh.client().completions.create(**short)
            load, after = worker_of(mesh)
            assert answer.usage is not None and answer.usage.completion_tokens == 1
            assert load.computing_prompt_tokens <= PART
            assert 0 < after - before < LONG // PART // 2
            assert load.pending_prompt_tokens <= PART
            mesh.wait_until_idle()
