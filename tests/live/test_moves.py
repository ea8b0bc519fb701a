"""Running requests move between token workers with their KV: clients get the same tokens, and nothing is computed twice."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from spotwise.cli.mesh.running import MeshAddresses
from spotwise.cli.move import choices_to_move, move_request
from spotwise.core.messages.worker import MoveEnded, MoveOutcome
from spotwise.mesh.redis.store import RedisStore
from tests.live.answers import Answer, ask, ask_all, assert_same, lasted_s
from tests.live.mesh import MODEL, LiveMesh
from tests.live.oracle import greedy, mixed_prompts
from tests.live.request_kinds import assert_fitting, bodies

#: Long enough for a move, which waits for the ledger, to begin well before the end, and to outlast a drain.
NEW_TOKENS = 128
#: A drain's time is this share of what the requests take undisturbed.
DRAIN_SHARE = 0.4


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    """One prompt worker and two token workers of this module's own."""
    with LiveMesh(tmp_path_factory.mktemp("moves"), "--token-workers", "2") as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(mesh: LiveMesh) -> dict[str, Answer]:
    """What requests of all kinds give where nothing happens, all of them streamed."""

    async def run() -> dict[str, Answer]:
        async with mesh.async_client() as client:
            return await ask_all(client, bodies(NEW_TOKENS))

    answers = asyncio.run(run())
    assert_fitting(answers)
    return answers


async def moved_stream(mesh: LiveMesh, move_after: tuple[int, ...], **body: Any) -> Answer:
    """Stream a completion; once each choice has so many tokens, and earlier moves have ended, move all choices there or back:
    to the worker that the first was not on, or was on.
    """
    answer, left = Answer(), [*move_after]
    addresses = MeshAddresses(mesh.state.nats_url, mesh.state.redis_url)
    moves: list[asyncio.Task[list[MoveEnded]]] = []

    def move_if_due() -> None:
        tokens = [len(each) for each in answer.token_ids.values()]
        if left and len(tokens) == body.get("n", 1) and min(tokens) >= left[0] and all(move.done() for move in moves):
            left.pop(0)
            if moves:
                order = move_request(addresses, answer.request_id, moves[-1].result()[0].worker_id)
            else:
                order = _to_the_other(addresses, answer.request_id)
            moves.append(asyncio.create_task(order))

    async with mesh.async_client() as client:
        await ask(client, body, answer, on_chunk=move_if_due)
    assert not left
    for move in moves:
        ended = await move
        assert any(each.outcome is MoveOutcome.MOVED for each in ended), ended
        assert all(each.outcome is MoveOutcome.MOVED or "already" in each.reason for each in ended), ended
    return answer


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


def test_a_move_changes_no_request_of_any_kind(mesh: LiveMesh, undisturbed: dict[str, Answer]) -> None:
    """Side by side, each to the other worker once it decodes, and all its choices."""

    async def all_moved() -> dict[str, Answer]:
        asked = bodies(NEW_TOKENS)
        moved = await asyncio.gather(*(moved_stream(mesh, (10,), **body) for body in asked.values()))
        return dict(zip(asked, moved, strict=True))

    assert_same(asyncio.run(all_moved()), undisturbed)
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


def test_a_drain_in_the_midst_changes_no_request_of_any_kind(mesh: LiveMesh, undisturbed: dict[str, Answer]) -> None:
    """Streamed and whole: the answers of an undisturbed run. What did not move in time took another attempt, and nothing else
    did. The last test of this mesh, since the worker does not come back.
    """

    async def drained() -> dict[str, Answer]:
        async with mesh.async_client() as client:
            seconds = DRAIN_SHARE * lasted_s(undisturbed)
            drain = functools.partial(asyncio.to_thread, mesh.drain, "token-1", seconds)
            return await ask_all(client, bodies(NEW_TOKENS, whole=0), drain)

    answers = asyncio.run(drained())
    assert_same(answers, undisturbed)
    left = 0
    for answer in answers.values():
        mesh.ledger(answer.request_id, "prefilled", "completed")
        entries = mesh.ledger_entries(answer.request_id)
        lost = {dict(each.facts)["reason"] for each in entries if each.stage == "attempt_lost"}
        assert lost <= {"the worker had to leave"}
        left += sum(each.stage in ("moved", "attempt_lost") for each in entries)
    assert left > 0
