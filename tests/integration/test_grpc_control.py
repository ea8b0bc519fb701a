"""Health and engine control over real gRPC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.messages.members import Member, MemberKind, MemberState, Pool, WorkerLoad
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.grpc.control import (
    ControlServer,
    EngineDescription,
    RecentIterations,
    SharedHealth,
    describe_engine,
    is_serving,
    recent_iterations,
)
from spotwise.mesh.ports.ports import MeshError
from tests.integration.running_services import control_server

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


DESCRIPTION = EngineDescription(
    WORKER, engine_sequences=3, resident_bytes=2**33, iterations=17, engine="float32", kv_bytes_per_token=2**40
)
TIMES = (IterationTime(BatchShape(5, 12.5, 0, 0), 0.25), IterationTime(BatchShape(0, 0.0, 3, 2**40), 0.125))


class Engines:
    """Workers by id; an empty id means the first."""

    def __init__(self, **descriptions: EngineDescription | None) -> None:
        self.descriptions = descriptions

    def describe(self, member_id: str) -> EngineDescription | None:
        return self.descriptions.get(member_id or next(iter(self.descriptions)))

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        return None if self.describe(member_id) is None else RecentIterations(9, TIMES[after:])


async def test_health_is_not_serving_until_told_and_again_when_told() -> None:
    async with control_server() as (server, address):
        assert not await is_serving(address)
        await server.set_serving(True)
        assert await is_serving(address)
        await server.set_serving(False)
        assert not await is_serving(address)


async def test_a_worker_describes_what_it_holds() -> None:
    async with control_server(Engines(only=DESCRIPTION)) as (_, address):
        assert await describe_engine(address) == DESCRIPTION


async def test_workers_that_share_an_address_are_told_apart() -> None:
    other = replace(DESCRIPTION, iterations=99)
    async with control_server(Engines(one=DESCRIPTION, two=other, three=None)) as (_, address):
        assert await describe_engine(address, "one") == DESCRIPTION
        assert await describe_engine(address, "two") == other
        for name in ("three", "four"):
            with pytest.raises(MeshError, match="still loading"):
                await describe_engine(address, name)
            with pytest.raises(MeshError, match="still loading"):
                await recent_iterations(address, name)


async def test_a_worker_tells_how_long_its_iterations_took() -> None:
    """All, or those behind a number; shapes and seconds arrive as they were."""
    async with control_server(Engines(only=DESCRIPTION)) as (_, address):
        assert await recent_iterations(address) == RecentIterations(9, TIMES)
        assert await recent_iterations(address, "only", after=1) == RecentIterations(9, TIMES[1:])
        assert await recent_iterations(address, "only", after=2) == RecentIterations(9, ())


async def test_a_process_serves_as_long_as_one_of_its_members_does() -> None:
    async with control_server() as (server, address):
        health = SharedHealth(server)
        for serving, expected in ((True, True), (True, True), (False, True), (False, False)):
            await health.set_serving(serving)
            assert await is_serving(address) is expected


async def test_a_worker_that_still_loads_says_so() -> None:
    async with control_server(Engines(only=None)) as (_, address):
        with pytest.raises(MeshError, match=f"{address} does not answer: the engine is still loading"):
            await describe_engine(address)
    with pytest.raises(MeshError, match=f"{address} does not answer"):
        await describe_engine(address, timeout_s=0.5)
    async with control_server() as (_, address):
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
