"""The load that a gateway publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry

from spotwise.core.messages.fleet import LoadReported
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import RequestAccepted, RequestAssigned, SubmitRequest, TokenBatch, TokenDelta
from spotwise.core.requests.request import FinishReason, StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec, TextEndedError
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import MODEL

SPEC = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(2))
OPEN = SequenceSpec((1, 2, 3, 4), SamplingParams(), StopCriteria(9))


class OneGateway:
    """A gateway's mesh client, a mesh that answers each request with its first two tokens, and a planner that listens."""

    def __init__(self, model_dir: Path) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.reports: list[LoadReported] = []
        self._settings = GatewaySettings(service_id="gateway-0", model_dir=model_dir, model_name=MODEL)

    async def _answer(self, message: BusMessage) -> None:
        order = decode(message.payload)
        if not isinstance(order, SubmitRequest):
            return
        assert message.respond is not None
        await message.respond(encode(RequestAccepted(order.choice_id, order.epoch)))
        assigned = RequestAssigned(order.choice_id, order.epoch, "p", "t")
        await self.bus.publish(subjects.inbox_from(MeshRole.SCHEDULER, "gateway-0", 1), encode(assigned))
        attempt_id, end = order.stream.attempt_id, FinishReason.LENGTH if order.max_new_tokens == 2 else None
        deltas = TokenDelta(attempt_id, 0, 5), TokenDelta(attempt_id, 1, 6, end)
        await self.bus.publish(subjects.inbox_from(MeshRole.WORKER, "gateway-0", 1), encode(TokenBatch("t", deltas)))

    async def _heard(self, message: BusMessage) -> None:
        report = decode(message.payload)
        assert isinstance(report, LoadReported)
        self.reports.append(report)

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[MeshGeneration]:
        control = ControlServer(LOOPBACK, 0)
        member = Member("gateway-0", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
        host = ServiceHost(self._settings, MemoryBus(self.broker), MemoryStore(), control, member)
        async with host.joined():
            await self.bus.subscribe(subjects.REQUESTS, self._answer)
            await self.bus.subscribe(subjects.LOAD, self._heard)
            generation = MeshGeneration(host, self._settings.submission, GatewayMetrics(CollectorRegistry(), MODEL))
            await generation.start()
            yield generation


async def test_a_planner_hears_of_each_request(model_dir: Path) -> None:
    """The first report comes at once, the next has the arrival in Unix time, and the tokens."""
    mesh = OneGateway(model_dir)
    async with mesh.generation() as generation:
        await until(lambda: mesh.reports)
        before_s = generation._host.clock.now()
        async with aclosing(generation.generate("r", SPEC)) as items, asyncio.timeout(30):
            tokens = [token async for item in items for token in item.tokens]
        assert len(tokens) == 2
        await until(lambda: len(mesh.reports) > 1)
        after_s = generation._host.clock.now()
    first, second = mesh.reports
    assert first == LoadReported("gateway-0", 1, 1)
    (arrived_s,) = second.arrivals_s
    assert before_s <= arrived_s <= after_s
    assert second == LoadReported("gateway-0", 1, 2, (arrived_s,), 3, 1, 2)


async def test_a_text_that_a_stop_string_ends_has_finished(model_dir: Path) -> None:
    """With its tokens; the request of a client that leaves has come, but not finished."""
    mesh = OneGateway(model_dir)
    async with mesh.generation() as generation:
        await until(lambda: mesh.reports)
        for choice_id, is_text_ended in (("ended", True), ("left", False)):
            async with aclosing(generation.generate(choice_id, OPEN)) as items, asyncio.timeout(30):
                async for item in items:
                    if item.tokens:
                        break
                if is_text_ended:
                    with suppress(TextEndedError):
                        await items.athrow(TextEndedError())
        await until(lambda: sum(report.prompt_tokens for report in mesh.reports) == 8)
    assert [
        sum(len(report.arrivals_s) for report in mesh.reports),
        sum(report.finished for report in mesh.reports),
    ] == [2, 1]
    assert sum(report.output_tokens for report in mesh.reports) == 2
