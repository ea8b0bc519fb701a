"""A mesh whose largest worker is lost: what it had accepted without a bound goes on, and ends where the smaller one is full."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.mesh import MODEL, ONE_MIXED, wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.parallel

SMALL, LARGE = "mixed-0", "mixed-large"
#: Before the worker is lost.
TOKENS = 20


def blocks(mesh: SimulatedMesh) -> dict[str, int]:
    """KV blocks of each worker that serves."""
    loads = {each.member.id: each.member_now.load for each in mesh.members() if each.serving}
    return {worker: load.kv_blocks_total for worker, load in loads.items() if load is not None}


async def open_stream(mesh: SimulatedMesh, *, loses: int | None) -> tuple[SeededStream, str | None]:
    """Stream a chat without `max_tokens` to its end; kill a process after `TOKENS` tokens. Return it with its finish reason."""
    stream, reason = SeededStream(), None
    async with mesh.async_client() as client:
        chunks = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Go on."}],
            seed=7,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in chunks:
            stream.request_id = chunk.id
            for choice in chunk.choices:
                stream.tokens.extend(getattr(choice, "token_ids", None) or [])
                reason = choice.finish_reason or reason
            if loses is not None and len(stream.tokens) >= TOKENS:
                os.kill(loses, signal.SIGKILL)
                loses = None
    return stream, reason


def test_a_chat_without_a_bound_outlives_the_largest_worker(tmp_path: Path) -> None:
    """It has the tokens of one that knew the smaller worker only: none is missing, and no error comes in its middle."""
    with SimulatedMesh(tmp_path, *ONE_MIXED, "--kv-cache", "64MiB") as mesh:
        command = [sys.executable, "-m", "spotwise.cli", "join", "mixed", "--id", LARGE, "--kv-cache", "1GiB"]
        with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL) as large:
            try:
                wait_for(lambda: blocks(mesh).keys() == {LARGE, SMALL}, lambda: f"two workers, of {blocks(mesh)}")
                assert blocks(mesh)[LARGE] > 10 * blocks(mesh)[SMALL]
                moved, reason = asyncio.run(open_stream(mesh, loses=large.pid))
            finally:
                large.kill()
        entries = mesh.ledger_entries(moved.request_id)
        assert [dict(each.facts)["token_worker"] for each in entries if each.stage == "assigned"] == [LARGE, SMALL]
        small, its_reason = asyncio.run(open_stream(mesh, loses=None))
        assert (reason, its_reason) == ("length", "length")
        assert len(small.tokens) > TOKENS and moved.tokens == small.tokens
        mesh.wait_until_idle()
