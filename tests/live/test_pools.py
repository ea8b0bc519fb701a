"""Pools that breathe, and a scheduler that is killed while requests wait: every stream has the tokens of an undisturbed one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from spotwise.core.messages.members import Pool
from tests.live.mesh import LiveMesh, wait_for
from tests.live.oracle import greedy, mixed_prompts
from tests.live.streams import stream

pytestmark = pytest.mark.paired

NEW_TOKENS = 12
BURST = 9


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One prompt worker whose queue is full with a few prompts, and two token workers."""
    with LiveMesh(
        tmp_path_factory.mktemp("pools"),
        "--prompt-workers",
        "1",
        "--token-workers",
        "2",
        env={"SPOTWISE_MAX_PENDING_PROMPT_TOKENS": "64"},
    ) as live:
        yield live


def long_prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of 50 tokens and more."""
    return [prompt for prompt in mixed_prompts(160, 200) if len(prompt) >= 50][:count]


def streams(
    mesh: LiveMesh, prompts: list[tuple[int, ...]], counts: dict[int, int], disturbance: Any = None
) -> list[str]:
    """Stream all prompts at once, compare every token, return the requests' ids; `counts` are the tokens so far."""

    async def run() -> list[tuple[str, tuple[int, ...]]]:
        async with mesh.async_client() as client:

            async def one(number: int) -> tuple[str, tuple[int, ...]]:
                return await stream(
                    client, prompts[number], NEW_TOKENS, lambda count: counts.__setitem__(number, count)
                )

            disturbing = asyncio.create_task(disturbance()) if disturbance else None
            answers = await asyncio.gather(*map(one, range(len(prompts))))
            if disturbing is not None:
                await disturbing
            return answers

    answers = asyncio.run(run())
    for prompt, (_, tokens) in zip(prompts, answers, strict=True):
        assert tokens == greedy(prompt, NEW_TOKENS)
    return [request_id for request_id, _ in answers]


def pools_now(mesh: LiveMesh) -> dict[str, Pool | None]:
    """The pool that every worker is in."""
    return {status.member.id: status.pool_now for status in mesh.members() if status.member.pool is not None}


AT_HOME = {"prompt-0": Pool.PROMPT, "token-0": Pool.TOKEN, "token-1": Pool.TOKEN}


def test_a_burst_of_prompts_moves_a_token_worker_into_the_mixed_pool_and_back(mesh: LiveMesh) -> None:
    """Some prompts are computed where they are decoded; when they are done, phases are split as before."""
    ids = streams(mesh, long_prompts(BURST), {})
    assigned = [mesh.ledger(request_id)["assigned"] for request_id in ids]
    spilled = [facts for facts in assigned if facts.get("placed_by") in ("mixed_pool", "conversion")]
    assert spilled
    assert all(facts["prompt_worker"] == facts["token_worker"] != "prompt-0" for facts in spilled)
    assert any("placed_by" not in facts and facts["prompt_worker"] == "prompt-0" for facts in assigned)

    wait_for(lambda: pools_now(mesh) == AT_HOME, lambda: f"workers at home: {pools_now(mesh)}")
    [request_id] = streams(mesh, long_prompts(BURST + 1)[-1:], {})
    facts = mesh.ledger(request_id)["assigned"]
    assert facts["prompt_worker"] == "prompt-0"
    assert facts["token_worker"] in ("token-0", "token-1")
    assert "placed_by" not in facts
    mesh.wait_until_idle()


SCARCE = ("--prompt-workers", "1", "--token-workers", "1", "--kv-cache", "16MiB")


def test_the_scheduler_is_killed_while_streams_run_and_requests_wait(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With memory for a few requests only, most wait at the scheduler; all are answered, the running ones unmoved."""
    with LiveMesh(tmp_path_factory.mktemp("scarce"), *SCARCE, env={"SPOTWISE_RESERVE": "max_tokens"}) as mesh:
        prompts, counts = long_prompts(BURST), dict.fromkeys(range(BURST), 0)
        begun_at_the_kill: list[int] = []

        async def kill() -> None:
            while sum(counts.values()) < NEW_TOKENS:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)
            begun_at_the_kill.extend(number for number, count in counts.items() if count)
            os.kill(mesh.pid("scheduler-0"), signal.SIGKILL)

        ids = streams(mesh, prompts, counts, kill)
        assert 0 < len(begun_at_the_kill) < BURST
        attempts = [mesh.ledger(request_id, "completed")["completed"]["attempts"] for request_id in ids]
        assert all(attempts[number] == 1 for number in begun_at_the_kill)
        assert sum(count > 1 for count in attempts) >= 1
        mesh.wait_until_idle()
