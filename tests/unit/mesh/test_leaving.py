"""How a member ends its background work."""

from __future__ import annotations

import asyncio

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from tests.contracts.waiting import PATIENCE_S
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore


async def test_a_member_leaves_though_its_work_swallows_a_cancellation() -> None:
    """A member leaves although its task swallows a cancellation, as redis-py with `asyncio.wait_for` on Python 3.11."""
    store = MemoryStore()
    member = Member("member-1", MemberKind.TOKEN_WORKER, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:1")
    settings = ServiceSettings(service_id="member-1")
    host = ServiceHost(settings, MemoryBus(MemoryBroker()), store, ControlServer(LOOPBACK, 0), member)
    began, cancellations = asyncio.Event(), 0

    async def deaf_once() -> None:
        nonlocal cancellations
        began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancellations += 1
            if cancellations > 1:
                raise

    async with asyncio.timeout(PATIENCE_S / 2):
        async with host.joined():
            host.every(0.0, deaf_once, "deaf")
            await began.wait()
    assert cancellations == 2
    assert await store.members() == []
