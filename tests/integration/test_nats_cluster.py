"""The bus over a NATS cluster of three: its contract, and what the death of a node and a node that stands still are like."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from spotwise.mesh.embedded.servers import free_port
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.ports.ports import BusMessage, MeshError, MessageBus, NoResponderError, Subscription
from tests.clusters import NatsCluster, running_nats_cluster
from tests.contracts.bus import BusContract, Connect, echo
from tests.contracts.waiting import until
from tests.integration.onlooker import heard_on

pytestmark = pytest.mark.mesh


class EveryNode:
    """Waits until a connection's subscriptions are known to every node: a node announces them to the others in order."""

    def __init__(self, probes: list[NatsBus]) -> None:
        self._probes = probes

    async def knows(self, bus: NatsBus) -> None:
        """Return once all that the bus subscribed to, or unsubscribed from, has reached every node."""
        subject = f"probe.{uuid.uuid4().hex}"
        subscription = await bus.subscribe(subject, echo)
        for probe in self._probes:
            await probe.request(subject, b"", 10.0)  # a cluster's bus asks again where no subscriber is known yet
        await subscription.unsubscribe()


class SettledBus:
    """A bus whose subscriptions are known everywhere when `subscribe` returns, as the contract has it for one broker."""

    def __init__(self, bus: NatsBus, every_node: EveryNode) -> None:
        self._bus = bus
        self._every_node = every_node
        self.max_payload_bytes = bus.max_payload_bytes
        self.publish, self.request = bus.publish, bus.request
        self.when_reconnected, self.close = bus.when_reconnected, bus.close

    async def subscribe(
        self, subject: str, handler: Callable[[BusMessage], Awaitable[None]], queue: str = ""
    ) -> Subscription:
        subscription = await self._bus.subscribe(subject, handler, queue)
        await self._every_node.knows(self._bus)
        return SettledSubscription(subscription, self._bus, self._every_node)


class SettledSubscription:
    """A subscription whose end is known everywhere when `unsubscribe` returns."""

    def __init__(self, subscription: Subscription, bus: NatsBus, every_node: EveryNode) -> None:
        self._subscription, self._bus, self._every_node = subscription, bus, every_node

    async def unsubscribe(self) -> None:
        await self._subscription.unsubscribe()
        await self._every_node.knows(self._bus)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    with running_nats_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class TestNatsCluster(BusContract):
    @pytest.fixture
    async def connect(self, cluster: NatsCluster) -> AsyncIterator[Connect]:
        probes = [await cluster.connected_at(node, "probe") for node in cluster.servers]
        every_node = EveryNode(probes)
        buses: list[NatsBus] = []

        async def connect() -> MessageBus:
            node = cluster.servers[len(buses) % len(cluster.servers)]
            buses.append(await cluster.connected_at(node, f"test-{len(buses)}"))
            return SettledBus(buses[-1], every_node)

        yield connect
        for bus in (*buses, *probes):
            await bus.close()

    async def test_close_lets_the_handlers_finish_what_has_arrived(self, connect: Connect, subject: str) -> None:
        """Closing sends and handles what is pending, also what a bus of another node sent."""
        bus, other = await connect(), await connect()
        heard = await heard_on(bus, subject)
        await other.publish(subject, b"sent")
        await until(lambda: heard)
        await bus.close()
        await bus.close()
        with pytest.raises(MeshError):
            await bus.publish(subject, b"")


async def test_a_cluster_of_which_no_node_answers_is_an_error_without_passwords() -> None:
    ports = [free_port(), free_port()]
    url = ",".join(f"nats://user:hush@127.0.0.1:{port}" for port in ports)
    with pytest.raises(MeshError) as raised:
        await NatsBus.connect(url, "test", connect_timeout_s=0.3)
    assert all(f"127.0.0.1:{port}" in str(raised.value) for port in ports)
    assert "hush" not in str(raised.value)


async def test_each_node_dies_and_returns_under_traffic(cluster: NatsCluster) -> None:
    """Whichever node dies, a listener goes on with what is sent after it is back, in order and nothing twice; a request whose
    subscriber is moving to another node waits for it.
    """
    subject = uuid.uuid4().hex
    reconnected: list[str] = []
    listener, speaker = await NatsBus.connect(cluster.url, "listener"), await NatsBus.connect(cluster.url, "speaker")
    listener.when_reconnected(lambda: reconnected.append("listener"))
    heard = await heard_on(listener, subject)
    await listener.subscribe(f"{subject}.ask", echo)
    sent = 0

    async def speak() -> None:
        nonlocal sent
        while True:
            sent += 1
            await speaker.publish(subject, str(sent).encode())
            await asyncio.sleep(0.002)

    speaking = asyncio.create_task(speak())
    try:
        for turn in range(3):
            node = cluster.node_of(listener)
            await until(lambda: heard)
            times = len(reconnected)
            cluster.kill(node)
            await until(lambda: len(reconnected) > times)  # noqa: B023 - awaited in the same turn
            assert cluster.node_of(listener) is not node
            assert await speaker.request(f"{subject}.ask", b"there", 10.0) == b"there"
            last = sent
            await until(lambda: int(heard[-1]) > last)  # noqa: B023
            cluster.start(node)
            assert [*map(int, heard)] == sorted({*map(int, heard)}), f"turn {turn}"
    finally:
        speaking.cancel()
        await speaker.close()
        await listener.close()


async def test_a_node_that_stands_still_is_left_although_the_socket_is_full(cluster: NatsCluster) -> None:
    """A node that reads no more is missed by its silence; more is under way to it than any buffer holds."""
    bus = await NatsBus.connect(cluster.url, "test")
    reconnected = asyncio.Event()
    bus.when_reconnected(reconnected.set)
    await bus.subscribe("flood.ask", echo)
    node = cluster.node_of(bus)

    async def flood() -> None:
        while True:
            await bus.publish("flood.nowhere", bytes(500_000))

    flooding = asyncio.create_task(flood())
    await asyncio.sleep(0.1)
    os.kill(cluster.children[node].pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(30.0):
            await reconnected.wait()
        flooding.cancel()
        assert cluster.node_of(bus) is not node
        assert await bus.request("flood.ask", b"there", 10.0) == b"there"
    finally:
        flooding.cancel()
        os.kill(cluster.children[node].pid, signal.SIGCONT)
        await bus.close()


async def test_a_subscription_given_up_while_no_broker_answers_stays_given_up(tmp_path: Path) -> None:
    """It does not come back with the connection."""
    heard: list[bytes] = []

    async def handler(message: BusMessage) -> None:
        heard.append(message.payload)

    with running_nats_cluster(tmp_path) as cluster:
        bus = await NatsBus.connect(cluster.url, "test")
        reconnected = asyncio.Event()
        bus.when_reconnected(reconnected.set)
        subscription = await bus.subscribe("given.up", handler)
        for node in cluster.servers:
            cluster.kill(node)
        await until(lambda: not bus._client.is_connected)
        await subscription.unsubscribe()
        cluster.start(cluster.servers[0])
        await reconnected.wait()
        with pytest.raises(NoResponderError):
            await bus.request("given.up", b"", 10.0)
        await bus.close()
    assert heard == []
