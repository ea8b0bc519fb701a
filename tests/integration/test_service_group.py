"""Several members in one process over a real broker, store and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.worker import GiveBackRequest
from spotwise.mesh.grpc.control import EngineDescription, RecentIterations, is_serving
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.redis.store import RedisStore
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import PATIENCE_S, until
from tests.integration.onlooker import looking_on

pytestmark = pytest.mark.mesh

IDS = tuple(f"member-{number}" for number in range(1, 6))


class NoEngines:
    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe no engine."""

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return no times."""


class Members:
    def __init__(self) -> None:
        self.hosts: dict[str, ServiceHost] = {}
        self.heard: list[tuple[str, str]] = []

    @contextlib.asynccontextmanager
    async def at_work(self, host: ServiceHost) -> AsyncIterator[None]:
        """One of them: it notes what its inbox brings."""

        async def heard(message: GiveBackRequest, raw: BusMessage) -> None:
            self.heard.append((host.id, message.reason))

        await host.listen(subjects.inbox(host.id), heard)
        self.hosts[host.id] = host
        try:
            yield
        finally:
            del self.hosts[host.id]


async def registered(redis_url: str) -> list[Member]:
    store = await RedisStore.connect(redis_url)
    try:
        return await store.members()
    finally:
        await store.close()


async def test_members_join_hear_and_leave_each_by_itself(settings: ServiceSettings, redis_url: str) -> None:
    """Each member has its own registration and inbox; the process serves until the last member has left."""
    members = Members()
    async with ServiceGroup.open(settings, NoEngines()) as group, asyncio.timeout(PATIENCE_S):
        running = asyncio.create_task(group.run(IDS, MemberKind.TOKEN_WORKER, members.at_work))
        await until(lambda: len(members.hosts) == len(IDS))
        address = members.hosts[IDS[0]].member.grpc_address
        while {m.state for m in await registered(redis_url)} != {MemberState.READY}:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.01)
        assert [member.id for member in await registered(redis_url)] == list(IDS)
        assert {member.grpc_address for member in await registered(redis_url)} == {address}
        leaving, staying = members.hosts[IDS[1]], members.hosts[IDS[2]]
        leaving.stop()
        await until(lambda: IDS[1] not in members.hosts)
        while IDS[1] in {member.id for member in await registered(redis_url)}:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(0.01)
        for member_id in IDS:
            order = GiveBackRequest("r", 1, f"to {member_id}", 1)
            await staying.bus.publish(subjects.inbox_from(MeshRole.PLANNER, member_id), encode(order))
        await until(lambda: len(members.heard) == len(IDS) - 1)
        assert sorted(members.heard) == sorted((each, f"to {each}") for each in IDS if each != IDS[1])
        assert await is_serving(address)
        assert not running.done()
        group.stop()
        await running
        assert not await is_serving(address)
    assert await registered(redis_url) == []


async def test_a_member_that_fails_takes_the_process_down(settings: ServiceSettings, redis_url: str) -> None:
    members = Members()

    async def fail() -> None:
        raise ValueError("a bug")

    async with ServiceGroup.open(settings, NoEngines()) as group, asyncio.timeout(PATIENCE_S):
        running = asyncio.create_task(group.run(IDS, MemberKind.TOKEN_WORKER, members.at_work))
        await until(lambda: len(members.hosts) == len(IDS))
        members.hosts[IDS[3]].spawn(fail(), "brittle")
        with pytest.raises(MeshError, match="brittle: a bug"):
            await running
    assert await registered(redis_url) == []
    assert members.hosts == {}


async def test_a_group_that_is_stopped_at_its_start_leaves(settings: ServiceSettings, redis_url: str) -> None:
    """Members that had not begun yet do not begin."""
    members = Members()
    async with ServiceGroup.open(settings, NoEngines()) as group, asyncio.timeout(PATIENCE_S):
        group.stop()
        await group.run(IDS, MemberKind.TOKEN_WORKER, members.at_work)
    assert members.hosts == {}
    assert await registered(redis_url) == []


async def test_an_id_that_is_in_use_is_refused(settings: ServiceSettings, nats_url: str, redis_url: str) -> None:
    """An id in use by another process is refused, as it is for a single service."""
    taken = settings.model_copy(update={"service_id": IDS[2]})
    async with (
        ServiceHost.open(taken, MemberKind.TOKEN_WORKER) as host,
        looking_on(nats_url, redis_url),
        asyncio.timeout(PATIENCE_S),
    ):
        serving = asyncio.create_task(host.run())
        async with ServiceGroup.open(settings, NoEngines()) as group:
            with pytest.raises(MeshError, match=f"the id '{IDS[2]}' is in use"):
                await group.run(IDS, MemberKind.TOKEN_WORKER, Members().at_work)
        host.stop()
        await serving
