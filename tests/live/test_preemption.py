"""Queues that preempt at every token, and KV that goes to the host and comes back: no client gets another token for it.

Each worker's KV cache holds two or three of the requests that it has, and so do its batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from spotwise.core.messages.members import WorkerLoad
from tests.live.mesh import MODEL, ONE_MIXED, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.streams import stream

#: Oracle, mesh and replay, on a machine that does something else as well.
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

REQUESTS = 12
NEW_TOKENS = 32
TWO_MIXED = (*ONE_MIXED[:-1], "2")
#: 15 blocks of the default model in float32, of which a request takes 5 to 8, all together 81.
LITTLE_KV = ("--kv-cache", "11MiB", "--kv-host", "512MiB")
#: About this model on a core.
PROFILE = {
    "format": "spotwise-cost-profile/1",
    "name": "a core",
    "iteration": {
        "kind": "linear",
        "fixed_s": 0.015,
        "prompt_token_s": 7e-4,
        "prompt_context_s": 0.0,
        "decode_s": 2e-3,
        "decode_context_s": 0.0,
    },
    "link": None,
    "kv_bytes_per_token": 46080,
    "kv_tokens": 240,
}


class SwappingMesh(LiveMesh):
    """Workers with queues, batches of three and little KV."""

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        profile = home / "profile.json"
        profile.write_text(json.dumps(PROFILE))
        policy = ("--policy", "mlfq", "--profile", str(profile))
        few = {"SPOTWISE_MAX_NUM_SEQS": "3", "SPOTWISE_STARVE_LIMIT_MS": "150", "SPOTWISE_MAX_QUEUE_S": "120"}
        super().__init__(home, *policy, *LITTLE_KV, *options, env=few | (env or {}))

    def loads(self) -> dict[str, WorkerLoad]:
        """The current load of each worker."""
        now = [status.member_now for status in self.members()]
        return {member.id: member.load for member in now if member.load is not None}

    def swapped(self) -> int:
        """Return the number of sequences whose KV is not on a device."""
        return sum(load.swapped for load in self.loads().values())

    def stages(self, request_id: str) -> Counter[str]:
        """How often each stage is in a request's ledger, once it is completed."""
        self.ledger(request_id, "decoded", "completed")
        return Counter(entry.stage for entry in self.ledger_entries(request_id))


def prompts() -> list[tuple[int, ...]]:
    """Return prompts of 41 to 96 tokens, worth about the same each; every third begins like the one before it."""
    text = mixed_prompts(1, 200)[0]
    return [text[8 * (number - (number % 3 == 2)) :][: 41 + 5 * number] for number in range(REQUESTS)]


def serve_all(mesh: SwappingMesh) -> list[str]:
    """Stream all requests at once, compare their tokens, and return their ids."""

    async def run() -> list[tuple[str, tuple[int, ...]]]:
        async with mesh.async_client() as client:
            return await asyncio.gather(
                *(stream(client, prompt, NEW_TOKENS, lambda count: None) for prompt in prompts())
            )

    ids = []
    for prompt, (request_id, tokens) in zip(prompts(), asyncio.run(run()), strict=True):
        assert tokens == greedy(prompt, NEW_TOKENS), f"prompt of {len(prompt)} tokens"
        ids.append(request_id)
    mesh.wait_until_idle()
    return ids


def come_and_leave(mesh: SwappingMesh) -> None:
    """Send requests and disconnect while KV is swapped out: nothing stays on the device, the host or in a copy."""

    async def run() -> None:
        async with httpx.AsyncClient(base_url=mesh.url, timeout=60.0) as client:
            bodies: list[dict[str, Any]] = [
                {"model": MODEL, "prompt": [*prompt], "max_tokens": 100, "ignore_eos": True, "stream": True}
                for prompt in prompts()
            ]
            requests = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
            await asyncio.to_thread(wait_for, lambda: mesh.swapped() > 3, lambda: f"KV on a host: {mesh.loads()}")
            for request in requests:
                request.cancel()
                await asyncio.sleep(0.1)
            await asyncio.gather(*requests, return_exceptions=True)

    asyncio.run(run())
    mesh.wait_until_idle()


@pytest.mark.parametrize(
    ("workers", "when_full", "max_num_batched_tokens"),
    [
        pytest.param(ONE_MIXED, "proactive", "24", marks=pytest.mark.long),
        ((), "reactive", "24"),
    ],
    ids=["mixed proactive in parts", "split reactive in parts"],
)
def test_tokens_are_the_same_from_kv_that_was_away(
    tmp_path: Path, workers: tuple[str, ...], when_full: str, max_num_batched_tokens: str
) -> None:
    """Requests are swapped out and in, most of them many times; nothing is computed again, and nothing held afterwards.

    Clients that left while their KV was away have left nothing behind for those. Each worker's events and commands are
    replayed from its journal.
    """
    journals = tmp_path / "journals"
    env = {
        "SPOTWISE_WHEN_FULL": when_full,
        "SPOTWISE_JOURNAL": str(journals),
        "SPOTWISE_MAX_NUM_BATCHED_TOKENS": max_num_batched_tokens,
    }
    with SwappingMesh(tmp_path, *workers, env=env) as mesh:
        if when_full == "proactive":
            come_and_leave(mesh)
        ids = serve_all(mesh)
        stages = [mesh.stages(request_id) for request_id in ids]
        loads = mesh.loads()
        shown = mesh.command("status").stdout
        most = max(zip(stages, ids, strict=True), key=lambda pair: pair[0]["swapped_out"])[1]
        explained = mesh.command("explain", most).stdout
    times = sorted(each["swapped_out"] for each in stages)
    # Requests arrive one by one: the first may be completed before the others need its KV blocks.
    assert times[REQUESTS // 2] >= 3, times
    assert all(each["swapped_in"] == each["swapped_out"] for each in stages)
    decoder = loads["mixed-0" if workers else "token-0"]
    assert decoder.preemptions == 0
    # Of both workers: which of them swaps more depends on their speeds; a host copies nothing that it holds already.
    assert sum(load.kv_blocks_swapped_out for load in loads.values()) > decoder.kv_blocks_total
    assert sum(load.kv_blocks_swapped_in for load in loads.values()) > decoder.kv_blocks_total
    assert f"{decoder.kv_blocks_swapped_out:,} KV blocks swapped out" in shown and "KV blocks on host" in shown
    assert "swapped_out" in explained
    replayed = mesh.command("replay", str(journals), "--json", str(tmp_path / "replay.json"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.long
def test_a_worker_is_killed_while_sequences_are_on_its_host(tmp_path: Path) -> None:
    """The streams resume at their next token on the other worker or the successor, and no client sees an error."""
    with SwappingMesh(tmp_path, *TWO_MIXED, env={"SPOTWISE_WHEN_FULL": "reactive"}) as mesh:

        def kill() -> None:
            wait_for(lambda: mesh.loads()["mixed-0"].swapped > 2, lambda: f"swapped sequences in {mesh.loads()}")
            os.kill(mesh.pid("mixed-0"), signal.SIGKILL)

        async def run() -> list[tuple[str, tuple[int, ...]]]:
            async with mesh.async_client() as client:
                killing = asyncio.create_task(asyncio.to_thread(kill))
                answers = await asyncio.gather(
                    *(stream(client, prompt, NEW_TOKENS, lambda count: None) for prompt in prompts())
                )
                await killing
                return answers

        answers = asyncio.run(run())
        attempts = 0
        for prompt, (request_id, tokens) in zip(prompts(), answers, strict=True):
            assert tokens == greedy(prompt, NEW_TOKENS)
            attempts += mesh.ledger(request_id, "completed")["completed"]["attempts"]
        assert attempts > REQUESTS
        wait_for(lambda: len(mesh.loads()) == 2, lambda: f"both workers, of {mesh.loads()}")
        mesh.wait_until_idle()
