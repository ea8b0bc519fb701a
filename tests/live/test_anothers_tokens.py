"""A scheduler and then a gateway restart while workers decode: the next gateway's clients get their own tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from tests.live.mesh import MODEL, wait_for
from tests.live.simulated_mesh import QUESTION, SeededStream, SimulatedMesh

pytestmark = pytest.mark.parallel

OLD, NEW = range(100, 108), range(8)
#: The old streams last for minutes; the new ones pass the indexes at which those are.
OLD_TOKENS, NEW_TOKENS = 8000, 700


@pytest.fixture
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMesh]:
    with SimulatedMesh(
        tmp_path_factory.mktemp("restarts"), "--prompt-workers", "1", "--token-workers", "1", "--speed", "4"
    ) as live:
        yield live


def serves(mesh: SimulatedMesh) -> bool:
    """Whether a request is answered."""
    body = {"model": MODEL, "prompt": QUESTION, "max_tokens": 1}
    try:
        return mesh.post("/v1/completions", body).status_code == 200
    except httpx.TransportError:
        return False


def replaced(mesh: SimulatedMesh, scheduler_pid: int) -> bool:
    """Whether another scheduler runs."""
    process = mesh.state.services["scheduler-0"].process
    return process is not None and process.pid != scheduler_pid


async def _begin_and_restart(mesh: SimulatedMesh) -> None:
    """Start the old streams, kill the scheduler, and the gateway once that is back; the clients' streams break."""
    begun = {seed: asyncio.Event() for seed in OLD}

    def has_begun(seed: int, _: SeededStream) -> None:
        begun[seed].set()

    async with mesh.async_client() as client:
        streams = [asyncio.create_task(mesh.stream(client, seed, OLD_TOKENS, partial(has_begun, seed))) for seed in OLD]
        await asyncio.gather(*(event.wait() for event in begun.values()))
        first = mesh.pid("scheduler-0")
        mesh.kill("scheduler-0")
        await asyncio.to_thread(wait_for, lambda: replaced(mesh, first) and serves(mesh), lambda: "the new scheduler")
        mesh.kill("gateway-0")
        for stream in streams:
            with contextlib.suppress(Exception):  # however a client finds out: its gateway is dead
                await stream


def test_a_client_gets_its_own_tokens_after_restarts(mesh: SimulatedMesh) -> None:
    """After a gateway's restart each client gets its own tokens; the old clients' requests are not computed to their end."""
    expected = [stream.tokens for stream in mesh.streams(NEW, NEW_TOKENS)]
    asyncio.run(_begin_and_restart(mesh))
    wait_for(lambda: serves(mesh), lambda: "an answer from the new gateway")
    assert [stream.tokens for stream in mesh.streams(NEW, NEW_TOKENS)] == expected
    mesh.wait_until_idle()
