"""What a service does at SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import call_on_stop_signals
from spotwise.mesh.service.settings import ServiceSettings
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
async def _handlers() -> AsyncIterator[None]:
    yield
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.fixture
async def host() -> AsyncIterator[ServiceHost]:
    """A member of a mesh in memory."""
    member = Member("member-1", MemberKind.TOKEN_WORKER, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:1")
    settings = ServiceSettings(service_id="member-1")
    bus, control = MemoryBus(MemoryBroker()), ControlServer(LOOPBACK, 0)
    async with ServiceHost(settings, bus, MemoryStore(), control, member).joined() as host:
        yield host


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
async def test_the_first_signal_lets_it_leave_and_further_ones_stop_it(
    first: signal.Signals, second: signal.Signals
) -> None:
    acts: list[str] = []
    call_on_stop_signals(lambda: acts.append("leave"), lambda: acts.append("stop"))
    for count, number in enumerate((first, second, second), start=1):
        os.kill(os.getpid(), number)
        await until(lambda count=count: len(acts) == count)  # type: ignore[misc]
    assert acts == ["leave", "stop", "stop"]


async def test_a_member_that_drains_is_stopped_by_a_second_signal(host: ServiceHost) -> None:
    """Whatever it still holds."""
    began = asyncio.Event()
    host.leave = began.set
    serving = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(began.wait(), 5)
    assert not serving.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(serving.done)


async def test_a_member_that_does_not_drain_stops_at_the_first(host: ServiceHost) -> None:
    """As control services do, and gateways."""
    serving = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(serving.done)
