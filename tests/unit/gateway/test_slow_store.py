"""Clients that leave while the store takes its time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import CloseRequest, RequestAccepted, SubmitRequest
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.resume.store_turns import MOST_AT_ONCE
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import MODEL

SPEC = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(8))


class SlowStore(MemoryStore):
    """Writes when it may; deletes at once, as another connection of a server that was stopped would."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.writing = 0

    async def put_record(self, record: RequestRecord) -> None:
        self.writing += 1
        await self.may_write.wait()
        await super().put_record(record)
        self.writing -= 1


class OneGateway:
    """A gateway's mesh client, and a scheduler that accepts everything."""

    def __init__(self, model_dir: Path) -> None:
        self.store = SlowStore()
        self.broker = MemoryBroker()
        self.sent: list[SubmitRequest | CloseRequest] = []
        self._settings = GatewaySettings(service_id="gateway-0", model_dir=model_dir, model_name=MODEL)

    async def _accept(self, message: BusMessage) -> None:
        order = decode(message.payload)
        assert isinstance(order, SubmitRequest | CloseRequest)
        self.sent.append(order)
        if message.respond is not None:
            await message.respond(encode(RequestAccepted(order.choice_id, order.epoch)))

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[MeshGeneration]:
        control = ControlServer(LOOPBACK, 0)
        member = Member("gateway-0", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
        host = ServiceHost(self._settings, MemoryBus(self.broker), self.store, control, member)
        async with host.joined():
            await MemoryBus(self.broker).subscribe(subjects.REQUESTS, self._accept)
            generation = MeshGeneration(host, self._settings.submission, GatewayMetrics(CollectorRegistry(), MODEL))
            await generation.start()
            yield generation


async def _take(generation: MeshGeneration, choice_id: str) -> None:
    async for _ in generation.generate(choice_id, SPEC):
        pass


async def _leave(client: asyncio.Task[None]) -> None:
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)


async def test_a_client_that_leaves_before_the_record_is_written_is_never_submitted(model_dir: Path) -> None:
    """The record that was written after all is deleted, and a scheduler receives neither request."""
    mesh = OneGateway(model_dir)
    async with mesh.generation() as generation:
        client = asyncio.create_task(_take(generation, "r"))
        await until(lambda: mesh.store.writing)
        await _leave(client)
        await asyncio.sleep(0.05)  # time for a deletion that does not wait for the write
        mesh.store.may_write.set()
        await until(lambda: not mesh.store.writing)
        await asyncio.sleep(0.05)
        assert await mesh.store.get_record("r") is None
        assert mesh.sent == []


async def test_a_client_that_leaves_later_is_closed_after_the_submission(model_dir: Path) -> None:
    """The close follows the submission on the same subject, and the record is deleted."""
    mesh = OneGateway(model_dir)
    mesh.store.may_write.set()
    async with mesh.generation() as generation:
        client = asyncio.create_task(_take(generation, "r"))
        await until(lambda: mesh.sent)
        assert await mesh.store.get_record("r") is not None
        await _leave(client)
        await until(lambda: len(mesh.sent) == 2)
        assert [type(order) for order in mesh.sent] == [SubmitRequest, CloseRequest]
        await asyncio.sleep(0.05)
        assert await mesh.store.get_record("r") is None


async def test_clients_that_leave_while_the_store_does_nothing_cost_nothing_more(model_dir: Path) -> None:
    """Beyond the writes that were under way: no task waits for a store that may be away for long."""
    mesh = OneGateway(model_dir)
    async with mesh.generation() as generation:
        clients = [asyncio.create_task(_take(generation, f"r{number}")) for number in range(10 * MOST_AT_ONCE)]
        await until(lambda: mesh.store.writing == MOST_AT_ONCE)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.sleep(0.05)
        named = Counter(task.get_name() for task in asyncio.all_tasks())
        assert (named["submit"], named["delete_record"]) == (MOST_AT_ONCE, MOST_AT_ONCE)
        mesh.store.may_write.set()
        await until(lambda: not {"submit", "delete_record"} & {task.get_name() for task in asyncio.all_tasks()})
        assert [await mesh.store.get_record(f"r{number}") for number in range(MOST_AT_ONCE)] == [None] * MOST_AT_ONCE
        assert mesh.sent == []
