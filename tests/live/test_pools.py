"""Pools that breathe, and a scheduler that is killed while requests wait: every stream has the tokens of an undisturbed one."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from spotwise.core.messages.members import Pool
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SeededStream, SimulatedMesh

pytestmark = pytest.mark.paired

#: Tokens of a stream, about 12 ms each.
TOKENS = 150
BURST = 9
ONE_AND_TWO = ("--prompt-workers", "1", "--token-workers", "2", "--speed", "3", "--simulated-kv", "real")
AT_HOME = {"prompt-0": Pool.PROMPT, "token-0": Pool.TOKEN, "token-1": Pool.TOKEN}


def streams(mesh: SimulatedMesh, seeds: range) -> list[SeededStream]:
    """Stream all at once, compare every token."""
    done = mesh.streams(seeds, TOKENS)
    assert [stream.tokens for stream in done] == [mesh.tokens_of(seed, TOKENS) for seed in seeds]
    return done


def pools_now(mesh: SimulatedMesh) -> dict[str, Pool | None]:
    """The pool that every worker is in."""
    return {status.member.id: status.pool_now for status in mesh.members() if status.member.pool is not None}


def test_a_burst_of_prompts_moves_a_token_worker_into_the_mixed_pool_and_back(tmp_path: Path) -> None:
    """Some prompts are computed where they are decoded; when they are done, phases are split as before."""
    # a prompt worker whose queue is full with a few prompts
    with SimulatedMesh(tmp_path, *ONE_AND_TWO, env={"SPOTWISE_MAX_PENDING_PROMPT_TOKENS": "24"}) as mesh:
        burst = streams(mesh, range(BURST))
        assigned = [mesh.ledger(stream.request_id)["assigned"] for stream in burst]
        spilled = [facts for facts in assigned if facts.get("placed_by") in ("mixed_pool", "conversion")]
        assert spilled
        assert all(facts["prompt_worker"] == facts["token_worker"] != "prompt-0" for facts in spilled)
        assert any("placed_by" not in facts and facts["prompt_worker"] == "prompt-0" for facts in assigned)

        wait_for(lambda: pools_now(mesh) == AT_HOME, lambda: f"workers at home: {pools_now(mesh)}")
        [alone] = streams(mesh, range(BURST, BURST + 1))
        facts = mesh.ledger(alone.request_id)["assigned"]
        assert facts["prompt_worker"] == "prompt-0"
        assert facts["token_worker"] in ("token-0", "token-1")
        assert "placed_by" not in facts
        mesh.wait_until_idle()


def test_the_scheduler_is_killed_while_streams_run_and_requests_wait(tmp_path: Path) -> None:
    """With memory for a few requests only, most wait at the scheduler; all are answered, the running ones unmoved."""
    options = (*ONE_AND_TWO, "--kv-cache", "64MiB")
    with SimulatedMesh(tmp_path, *options, env={"SPOTWISE_RESERVE": "max_tokens"}) as mesh:
        begun_at_the_kill: list[int] = []

        async def run() -> list[SeededStream]:
            counts = dict.fromkeys(range(BURST), 0)

            def seen(seed: int, stream: SeededStream) -> None:
                counts[seed] = len(stream.tokens)
                if not begun_at_the_kill and sum(counts.values()) >= TOKENS // 2:
                    begun_at_the_kill.extend(number for number, count in counts.items() if count)
                    mesh.kill("scheduler-0")

            async with mesh.async_client() as client:
                return await asyncio.gather(
                    *(mesh.stream(client, seed, TOKENS, partial(seen, seed)) for seed in range(BURST))
                )

        done = asyncio.run(run())
        assert [stream.tokens for stream in done] == [mesh.tokens_of(seed, TOKENS) for seed in range(BURST)]
        assert 0 < len(begun_at_the_kill) < BURST
        attempts = [mesh.attempts(stream) for stream in done]
        assert all(attempts[number] == 1 for number in begun_at_the_kill)
        assert sum(count > 1 for count in attempts) >= 1
        mesh.wait_until_idle()
