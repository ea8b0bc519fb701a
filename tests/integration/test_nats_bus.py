"""The bus over a real NATS server: its contract, and what a broker's death and return are like."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spotwise.mesh.embedded.servers import free_port, nats_server
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import BusMessage, MeshError, MessageBus, ReplyTimeoutError
from tests.contracts.bus import BusContract, Connect, echo
from tests.contracts.waiting import until
from tests.integration.onlooker import heard_on

pytestmark = pytest.mark.mesh


class TestNatsBus(BusContract):
    @pytest.fixture
    async def connect(self, nats_url: str) -> AsyncIterator[Connect]:
        buses: list[NatsBus] = []

        async def connect() -> MessageBus:
            buses.append(await NatsBus.connect(nats_url, f"test-{len(buses)}"))
            return buses[-1]

        yield connect
        for bus in buses:
            await bus.close()


def is_connected(bus: NatsBus) -> bool:
    """Whether its client is, at this moment; services need not know."""
    return bus._client.is_connected


async def test_no_broker_is_an_error_that_names_the_url_and_comes_in_time() -> None:
    """Connecting gives up, although an established connection never does."""
    url = f"nats://127.0.0.1:{free_port()}"
    with pytest.raises(MeshError, match=rf"no NATS server answers at {url} within 0\.2 s: .*Connect call failed"):
        await NatsBus.connect(url, "test", connect_timeout_s=0.2)


async def test_a_port_where_something_else_answers_is_an_error() -> None:
    """A server that never greets is waited for so long and no longer."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(MeshError, match="no NATS server answers"):
            await NatsBus.connect(f"nats://127.0.0.1:{port}", "test", connect_timeout_s=0.2)


async def test_a_brokers_restart_is_a_pause(tmp_path: Path) -> None:
    """Killed and started again on its port: subscriptions stand, and what was published meanwhile arrives."""
    broker = nats_server(tmp_path)
    subject = uuid.uuid4().hex
    child = await asyncio.to_thread(broker.start)
    listener = await NatsBus.connect(broker.url, "listener")
    speaker = await NatsBus.connect(broker.url, "speaker")
    try:
        heard = await heard_on(listener, subject)
        await listener.subscribe(f"{subject}.ask", echo)
        await speaker.publish(subject, b"before")
        await until(lambda: heard == [b"before"])
        child.kill()
        await until(lambda: not is_connected(speaker) and not is_connected(listener))
        with pytest.raises(ReplyTimeoutError):
            await speaker.request(f"{subject}.ask", b"anybody there", 0.05)
        child = await asyncio.to_thread(broker.start)
        await until(lambda: is_connected(listener))
        await speaker.publish(subject, b"after")
        await until(lambda: b"after" in heard)
        assert await speaker.request(f"{subject}.ask", b"there", 10.0) == b"there"
    finally:
        await speaker.close()
        await listener.close()
        child.stop()


async def test_a_connection_whose_broker_is_gone_can_be_closed(tmp_path: Path) -> None:
    """Closing does not wait for it to come back."""
    broker = nats_server(tmp_path)
    child = await asyncio.to_thread(broker.start)
    bus = await NatsBus.connect(broker.url, "test")
    subscription = await bus.subscribe("subject", echo)
    child.kill()
    await until(lambda: not is_connected(bus))
    await subscription.unsubscribe()
    await bus.close()
    await bus.close()


async def test_large_messages_leave_the_loop_its_turns(nats_url: str) -> None:
    """Those that wait are handled in order, and something else has a turn after each."""
    bus = await NatsBus.connect(nats_url, "test")
    subject, count, turns = f"test.{uuid.uuid4().hex}", 30, 0
    handled: list[tuple[int, int]] = []
    all_wait = asyncio.Event()

    async def handle(message: BusMessage) -> None:
        await all_wait.wait()
        handled.append((message.payload[0], turns))

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await bus.subscribe(subject, handle)
    for number in range(count):
        await bus.publish(subject, bytes([number]) * 100_000)
    (subscription,) = bus._client._subs.values()
    await until(lambda: subscription.pending_msgs == count - 1)
    taking = asyncio.create_task(take_turns())
    await asyncio.sleep(0)
    all_wait.set()
    await until(lambda: len(handled) == count)
    taking.cancel()
    await bus.close()
    assert [number for number, _ in handled] == list(range(count))
    assert len({at for _, at in handled}) == count
