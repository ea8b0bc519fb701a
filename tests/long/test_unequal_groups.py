"""Workers of unequal shapes hand over and move requests: clients get the same tokens, whichever process dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spotwise.cli.mesh.running import MeshAddresses
from spotwise.cli.move import move_request
from spotwise.core.messages.worker import MoveEnded, MoveOutcome
from tests.live.mesh import MODEL, LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts

NEW_TOKENS = 48


async def completed(mesh: LiveMesh, **body: Any) -> Any:
    """One completion, by the real client, which repeats nothing."""
    async with mesh.async_client() as client:
        return await client.completions.create(
            model=MODEL, temperature=0, extra_body={"ignore_eos": True, "return_token_ids": True}, **body
        )


@contextmanager
def joined(mesh: LiveMesh, worker_id: str) -> Iterator[None]:
    """One more worker of both phases, of one process."""
    command = [sys.executable, "-m", "spotwise.cli", "join", "mixed", "--id", worker_id]
    with subprocess.Popen(command, env=mesh.env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(
                lambda: any(s.member.id == worker_id and s.serving for s in mesh.members()), lambda: worker_id, 90.0
            )
            yield
        finally:
            process.kill()


async def moved_along(mesh: LiveMesh, moves: dict[int, str], **body: Any) -> tuple[str, list[int], list[MoveEnded]]:
    """Stream a completion, and move it to other workers after so many tokens; its id, tokens, and what became of the moves."""
    request_id, token_ids, left = "", list[int](), dict(moves)
    addresses = MeshAddresses(mesh.state.nats_url, mesh.state.redis_url)
    moving: list[asyncio.Task[list[MoveEnded]]] = []
    async with mesh.async_client() as client:
        chunks: Any = await client.completions.create(
            model=MODEL, stream=True, temperature=0, extra_body={"ignore_eos": True, "return_token_ids": True}, **body
        )
        async for chunk in chunks:
            request_id = chunk.id
            token_ids += [token for choice in chunk.choices for token in choice.token_ids or []]
            for after in [count for count in left if count <= len(token_ids)]:
                moving.append(asyncio.create_task(move_request(addresses, request_id, left.pop(after))))
    return request_id, token_ids, [ended for move in moving for ended in await move]


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """A prompt pool of the six, and a token pool of one."""
    with LiveMesh(tmp_path_factory.mktemp("unequal"), "--parallel", "1,2,3+1,1,1") as live:
        yield live


def test_prompts_of_six_processes_are_decoded_by_one(unequal: LiveMesh) -> None:
    """Layer by layer, from each process that computes it: the oracle's tokens."""
    prompt = [*mixed_prompts(4, 400)[0]]
    answer = asyncio.run(completed(unequal, prompt=prompt, max_tokens=NEW_TOKENS))
    assert tuple(answer.choices[0].token_ids) == greedy(tuple(prompt), NEW_TOKENS)
    handed_off = unequal.ledger(answer.id, "handed_off", "completed")["handed_off"]
    assert handed_off["kv_bytes"] == 30 * 3 * 2 * 64 * 4 * 16 * -(-len(prompt) // 16)


def test_a_request_moves_from_one_process_to_six_and_back(unequal: LiveMesh) -> None:
    """In one attempt; its KV is cut, and put together again."""
    prompt = mixed_prompts(4, 300)[0]
    moves = {8: "prompt-0", 30: "token-0"}
    request_id, token_ids, ended = asyncio.run(moved_along(unequal, moves, prompt=[*prompt], max_tokens=2 * NEW_TOKENS))
    assert [each.outcome for each in ended] == [MoveOutcome.MOVED] * 2
    assert tuple(token_ids) == greedy(prompt, 2 * NEW_TOKENS)
    assert unequal.ledger(request_id, "completed")["completed"]["attempts"] == 1
    unequal.wait_until_idle()


@pytest.mark.parametrize("service_id", ["prompt-0-device-4", "token-0"])
def test_a_process_that_dies_in_the_midst_of_hand_offs_costs_a_pause(unequal: LiveMesh, service_id: str) -> None:
    """At either end: the oracle's tokens, and no blocks are left in use."""
    prompts = mixed_prompts(8, 500)[:6]

    async def all_of_them() -> list[Any]:
        bodies = [{"prompt": [*prompt], "max_tokens": 24} for prompt in prompts]
        running = [asyncio.create_task(completed(unequal, **body)) for body in bodies]
        await asyncio.sleep(0.8)
        os.kill(unequal.pid(service_id), signal.SIGKILL)
        return await asyncio.gather(*running)

    for prompt, answer in zip(prompts, asyncio.run(all_of_them()), strict=True):
        assert tuple(answer.choices[0].token_ids) == greedy(prompt, 24)
    wait_for(lambda: unequal.command("status").returncode == 0, lambda: "a healthy mesh", 60.0)
    unequal.wait_until_idle()


def test_a_drained_group_leaves_whole_and_its_requests_go_on_elsewhere(unequal: LiveMesh) -> None:
    """With their KV, at their next token; the devices leave with their leader."""
    prompt = mixed_prompts(4, 300)[0]

    async def drained() -> tuple[str, list[int], list[MoveEnded]]:
        stream = asyncio.create_task(moved_along(unequal, {8: "prompt-0"}, prompt=[*prompt], max_tokens=160))
        await asyncio.sleep(3.0)
        await asyncio.to_thread(unequal.drain, "prompt-0", 20.0)
        return await stream

    with joined(unequal, "mixed-joined"):
        request_id, token_ids, _ = asyncio.run(drained())
        assert tuple(token_ids) == greedy(prompt, 160)
        assert unequal.ledger(request_id, "completed")["completed"]["attempts"] == 1
        left = ["prompt-0", *(f"prompt-0-device-{number}" for number in range(6))]
        wait_for(lambda: not {s.member.id for s in unequal.members()} & {*left}, lambda: "the group to leave", 30.0)
