"""Running requests move between token workers with their KV: clients get the same tokens, and nothing is computed twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from spotwise.cli.mesh_access import MeshAddresses
from spotwise.cli.move import choices_to_move, move_request
from spotwise.core.worker_messages import MoveEnded, MoveOutcome
from spotwise.mesh.redis_store import RedisStore
from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import greedy, mixed_prompts
from tests.live.streamed import Streamed, stream

#: Long enough for a move, which waits for the ledger, to begin well before the end.
NEW_TOKENS = 96


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One prompt worker and two token workers of this module's own."""
    with LiveMesh(tmp_path_factory.mktemp("moves"), "--token-workers", "2") as live:
        yield live


async def moved_stream(mesh: LiveMesh, move_after: tuple[int, ...], **body: Any) -> Streamed:
    """Stream a completion; each time that its first choice has so many tokens, move all choices to the other worker."""
    streamed, left = Streamed(), [*move_after]
    addresses = MeshAddresses(mesh.state.nats_url, mesh.state.redis_url)
    moves: list[asyncio.Task[list[MoveEnded]]] = []

    def move_if_due() -> None:
        if left and len(streamed.token_ids.get(0, ())) >= left[0]:
            left.pop(0)
            moves.append(asyncio.create_task(_to_the_other(addresses, streamed.request_id)))

    async with mesh.async_client() as client:
        await stream(client, body, streamed, on_chunk=move_if_due)
    assert not left
    for move in moves:
        ended = await move
        assert any(each.outcome is MoveOutcome.MOVED for each in ended), ended
        assert all(each.outcome is MoveOutcome.MOVED or "already" in each.reason for each in ended), ended
    return streamed


async def _to_the_other(addresses: MeshAddresses, request_id: str) -> list[MoveEnded]:
    """Move the first choice to the worker that it is not on, and the others along."""
    store = await RedisStore.connect(addresses.redis_url)
    try:
        holders = await choices_to_move(store, request_id)
    finally:
        await store.close()
    _, holder = holders[min(holders)]
    return await move_request(addresses, request_id, "token-1" if holder == "token-0" else "token-0")


def test_a_stream_goes_on_at_its_next_token(mesh: LiveMesh) -> None:
    """There and back again: the oracle's tokens, in one attempt; the ledger tells of it, and nothing is left behind."""
    prompt = mixed_prompts(4, 400)[0]
    streamed = asyncio.run(moved_stream(mesh, (8, 30), prompt=[*prompt], max_tokens=NEW_TOKENS, temperature=0))
    assert tuple(streamed.token_ids[0]) == greedy(prompt, NEW_TOKENS)
    facts = mesh.ledger(streamed.request_id, "moved", "completed")
    assert facts["completed"]["attempts"] == 1
    assert facts["moved"]["kv_bytes"] > 0
    assert facts["moved"]["copied_before"] >= len(prompt)
    assert "attempt_lost" not in facts
    shown = mesh.command("explain", streamed.request_id).stdout
    assert "moved" in shown and "pause" in shown and "copied before" in shown
    mesh.wait_until_idle()


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.9, "top_p": 0.95, "seed": 7, "n": 2, "logprobs": 2},
        {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.4, "logprobs": 1},
    ],
    ids=["seeded, two choices, logprobs", "greedy, penalties, logprobs"],
)
def test_how_it_is_sampled_does_not_matter(mesh: LiveMesh, body: dict[str, Any]) -> None:
    """The same tokens and log-probabilities as without a move."""
    prompt = [*mixed_prompts(4, 200)[0]]
    still = asyncio.run(moved_stream(mesh, (), prompt=prompt, max_tokens=NEW_TOKENS, **body))
    moved = asyncio.run(moved_stream(mesh, (10,), prompt=prompt, max_tokens=NEW_TOKENS, **body))
    assert moved.token_ids == still.token_ids
    assert moved.finish == still.finish
    for choice, values in still.logprobs.items():
        assert moved.logprobs[choice] == pytest.approx(values, abs=1e-4)
    mesh.wait_until_idle()


def test_orders_that_make_no_sense_are_refused_with_what_to_do(mesh: LiveMesh) -> None:
    """A request that has ended, and a worker that is not there."""
    answer = mesh.client().completions.create(model=MODEL, prompt="Hello", max_tokens=2)
    mesh.ledger(answer.id, "completed")
    over = mesh.command("move", answer.id, "token-0")
    assert over.returncode == 1
    assert "only running requests can be moved" in over.stderr
    unknown = mesh.command("move", answer.id, "token-9")
    assert unknown.returncode == 1
    assert "spotwise status" in unknown.stderr


def test_a_drain_in_the_midst_of_streams_changes_none_of_them(mesh: LiveMesh) -> None:
    """Greedy, seeded with two choices, with penalties: the tokens and log-probabilities of undisturbed streams, in one attempt
    each, and no prompt computed twice. The last test of this mesh, since the worker does not come back.
    """
    prompts = [[*prompt] for prompt in mixed_prompts(5, 300)[:3]]
    bodies: list[dict[str, Any]] = [
        {"temperature": 0, "prompt": prompts[0]},
        {"temperature": 0.9, "top_p": 0.95, "seed": 7, "n": 2, "logprobs": 2, "prompt": prompts[1]},
        {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.4, "logprobs": 1, "prompt": prompts[2]},
    ]

    async def all_streams(drained: str | None) -> list[Streamed]:
        running = [asyncio.create_task(moved_stream(mesh, (), max_tokens=NEW_TOKENS, **body)) for body in bodies]
        if drained is not None:
            await asyncio.sleep(1.5)
            await asyncio.to_thread(mesh.drain, drained, 2.5)
        return [await each for each in running]

    still = asyncio.run(all_streams(None))
    moved = asyncio.run(all_streams("token-1"))
    moves = 0
    for before, after in zip(still, moved, strict=True):
        assert after.token_ids == before.token_ids
        assert after.finish == before.finish
        for choice, values in before.logprobs.items():
            assert after.logprobs[choice] == pytest.approx(values, abs=1e-4)
        facts = mesh.ledger(after.request_id, "prefilled", "completed")
        assert facts["completed"]["attempts"] == 1
        assert "given_back" not in facts
        moves += "moved" in facts
    assert moves > 0
