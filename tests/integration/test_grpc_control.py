"""Health and engine control over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from spotwise.core.messages import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.mesh.embedded import LOOPBACK, free_port
from spotwise.mesh.grpc_control import ControlServer, EngineDescription, describe_engine, is_serving
from spotwise.mesh.ports import MeshError

pytestmark = pytest.mark.mesh

WORKER = Member(
    id="token-1",
    kind=MemberKind.TOKEN_WORKER,
    incarnation=3,
    state=MemberState.DRAINING,
    host="a-host",
    pid=42,
    grpc_address="127.0.0.1:1",
    pool=Pool.TOKEN,
    transfer_address="127.0.0.1:2",
    model="a-model",
    load=WorkerLoad(pending_prompt_tokens=5, kv_blocks_total=9, kv_blocks_free=4, assignments_seen=(("s", 8),)),
)


@asynccontextmanager
async def running(
    describe: Callable[[], EngineDescription | None] | None = None,
) -> AsyncIterator[tuple[ControlServer, str]]:
    """A control server on a free port, and its address."""
    server = ControlServer(LOOPBACK, 0, describe)
    await server.start()
    try:
        yield server, f"{LOOPBACK}:{server.port}"
    finally:
        await server.close()


async def test_health_is_not_serving_until_told_and_again_when_told() -> None:
    """NOT_SERVING at the start, SERVING, NOT_SERVING."""
    async with running() as (server, address):
        assert not await is_serving(address)
        await server.set_serving(True)
        assert await is_serving(address)
        await server.set_serving(False)
        assert not await is_serving(address)


async def test_where_nobody_answers_nobody_serves() -> None:
    """A closed server, or none at all: `False`, and no exception."""
    async with running() as (server, address):
        await server.set_serving(True)
    assert not await is_serving(address, timeout_s=0.5)


async def test_a_worker_describes_what_it_holds() -> None:
    """The description arrives as it was given, the load included."""
    description = EngineDescription(WORKER, engine_sequences=3, resident_bytes=2**33, iterations=17, engine="float32")
    async with running(lambda: description) as (_, address):
        assert await describe_engine(address) == description


async def test_a_worker_that_still_loads_says_so() -> None:
    """As an error with its words; so does one that is not there, and a service without an engine."""
    async with running(lambda: None) as (_, address):
        with pytest.raises(MeshError, match=f"{address} does not answer: the engine is still loading"):
            await describe_engine(address)
    with pytest.raises(MeshError, match=f"{address} does not answer"):
        await describe_engine(address, timeout_s=0.5)
    async with running() as (_, address):
        with pytest.raises(MeshError, match="does not answer"):
            await describe_engine(address)


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    """Two services given one port must not share its connections."""
    port = free_port()
    first, second = ControlServer(LOOPBACK, port), ControlServer(LOOPBACK, port)
    await first.start()
    try:
        with pytest.raises(MeshError, match=f"gRPC cannot listen on {LOOPBACK}:{port}"):
            await second.start()
    finally:
        await second.close()
        await first.close()
