"""Moves of a running request whose iterations fail every second time: no step of a move waits for an iteration that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwise.cli.mesh.running import MeshAddresses
from spotwise.cli.move import move_request
from spotwise.core.messages.worker import MoveOutcome
from tests.live.failing_worker import FALTERS, start_failing_worker
from tests.live.failure_mesh import FailureMesh, run
from tests.live.mesh import MODEL, ONE_MIXED

pytestmark = pytest.mark.paired

NEW_TOKENS = 200
WORKERS = ("failing-0", "failing-1")
#: Half of them meet a failed iteration while the sequence parks. As many more are refused: ledgers come behind moves.
MOVES = 6


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailureMesh]:
    """Two workers of the test's own, in place of the mesh's."""
    home: Path = tmp_path_factory.mktemp("faltering")
    with FailureMesh(home, *ONE_MIXED) as live:
        workers = [start_failing_worker(live, name) for name in WORKERS]
        try:
            live.wait_for_workers("mixed-0", *WORKERS)
            live.drain("mixed-0", 5.0)
            live.wait_for_workers(*WORKERS)
            yield live
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


async def moved_stream(mesh: FailureMesh) -> list[int]:
    """Move a stream from one worker to the other and back; return its tokens."""
    addresses = MeshAddresses(mesh.state.nats_url, mesh.state.redis_url)
    tokens: list[int] = []
    moved = 0
    moving: asyncio.Task[None] | None = None

    async def move_on(request_id: str) -> None:
        nonlocal moved
        for target in WORKERS:
            for each in await move_request(addresses, request_id, target):
                moved += each.outcome is MoveOutcome.MOVED

    async with mesh.async_client() as client:
        chunks = await client.completions.create(
            model=MODEL,
            prompt=[FALTERS, 200, *range(300, 320)],
            max_tokens=NEW_TOKENS,
            seed=0,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        async for chunk in chunks:
            tokens.extend(getattr(chunk.choices[0], "token_ids", None) or [])
            if moved < MOVES and len(tokens) > 5 and (moving is None or moving.done()):
                if moving is not None:
                    await moving
                moving = asyncio.create_task(move_on(chunk.id))
    if moving is not None:
        await asyncio.gather(moving, return_exceptions=True)  # the stream may have ended first
    assert moved >= MOVES
    return tokens


def test_a_request_moves_between_workers_that_falter(mesh: FailureMesh) -> None:
    """It has the tokens of one that stays, in one attempt, and neither worker holds anything of it afterwards."""
    (stayed,) = run(mesh, FALTERS, new_tokens=NEW_TOKENS)
    assert asyncio.run(moved_stream(mesh)) == list(stayed.tokens)
    mesh.wait_until_idle()
