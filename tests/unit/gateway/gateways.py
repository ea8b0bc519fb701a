"""Two gateways' own code over one broker and one store, and a worker that draws tokens by their index."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import (
    CloseRequest,
    RequestAccepted,
    RequestAssigned,
    SubmitRequest,
    TokenBatch,
    TokenDelta,
)
from spotwise.core.requests.request import FinishReason
from spotwise.core.requests.sampling import TokenLogprobs
from spotwise.gateway.generate.api_options import ApiOptions
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.resume.kept_requests import KeptRequests
from spotwise.gateway.resume.owned_requests import OwnedRequests, journaled_loop
from spotwise.gateway.routes.app import create_app
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage, MeshStore, MessageBus
from spotwise.mesh.service.host import ServiceHost
from spotwise.text.chat_text import ChatText
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.apps import open_to
from tests.unit.gateway.fake_mesh import MODEL

STEP_S = 0.01
NewBus = Callable[[], Awaitable[MessageBus]]


class Worker:
    """A scheduler and a worker in one: the tokens of an attempt follow from the seed and their index; a newer attempt ends
    older ones. `drawn`: the indexes of a choice's tokens as they were computed; `epochs`: its attempts.
    """

    def __init__(self, new_bus: NewBus, store: MeshStore) -> None:
        self._new_bus = new_bus
        self._store = store
        self._attempts: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self.drawn: dict[str, list[int]] = {}
        self.epochs: dict[str, list[int]] = {}

    async def start(self) -> None:
        self._bus = await self._new_bus()
        await self._bus.subscribe(subjects.REQUESTS, self._on_request)

    async def close(self) -> None:
        for _, task in self._attempts.values():
            task.cancel()
        await self._bus.close()

    @property
    def running(self) -> list[str]:
        return [choice_id for choice_id, (_, task) in self._attempts.items() if not task.done()]

    async def _on_request(self, raw: BusMessage) -> None:
        order = decode(raw.payload)
        assert isinstance(order, SubmitRequest | CloseRequest)
        epoch, task = self._attempts.get(order.choice_id, (0, None))
        if isinstance(order, CloseRequest):
            if task is not None and epoch <= order.epoch:
                task.cancel()
            return
        assert order.epoch > epoch, "an attempt of an earlier owner"
        if task is not None:
            task.cancel()
        self._attempts[order.choice_id] = order.epoch, asyncio.create_task(self._run(order))
        self.epochs.setdefault(order.choice_id, []).append(order.epoch)
        assert raw.respond is not None
        await raw.respond(encode(RequestAccepted(order.choice_id, order.epoch)))

    async def _run(self, order: SubmitRequest) -> None:
        record = await self._store.get_record(order.choice_id)
        assert record is not None
        assert record.epoch == order.epoch
        gateway = order.stream.gateway_id, order.stream.incarnation
        assigned = RequestAssigned(order.choice_id, order.epoch, "w0", "w0")
        await self._bus.publish(subjects.inbox_from(MeshRole.SCHEDULER, *gateway), encode(assigned))
        inbox = subjects.inbox_from(MeshRole.WORKER, *gateway)
        for index in range(len(record.output_token_ids), record.stop.max_new_tokens):
            await asyncio.sleep(STEP_S)
            token_id = 3 + (record.sampling.seed + 31 * index) % 300
            self.drawn.setdefault(order.choice_id, []).append(index)
            reason = record.stop.finish_reason(token_id, index + 1)
            delta = TokenDelta(
                order.stream.attempt_id, index, token_id, reason, logprobs=TokenLogprobs(-index / 7, (), ())
            )
            await self._bus.publish(inbox, encode(TokenBatch("w0", (delta,))))


@asynccontextmanager
async def mesh_client(
    model_dir: Path, broker: MemoryBroker, store: MemoryStore, **settings: Any
) -> AsyncIterator[MeshGeneration]:
    """The gateway `gateway-0`'s own code below its API, in memory; `settings`: of its `GatewaySettings`."""
    configured = GatewaySettings(service_id="gateway-0", model_dir=model_dir, model_name=MODEL, **settings)
    member = Member("gateway-0", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
    async with ServiceHost(configured, MemoryBus(broker), store, ControlServer(LOOPBACK, 0), member).joined() as host:
        generation = MeshGeneration(host, configured.submission, GatewayMetrics(CollectorRegistry(), MODEL))
        await generation.start()
        yield generation


@asynccontextmanager
async def accepted(
    model_dir: Path, broker: MemoryBroker, store: MemoryStore
) -> AsyncIterator[tuple[MeshGeneration, list[SubmitRequest | CloseRequest]]]:
    """The same, with a scheduler that accepts everything, and the orders that it has heard."""
    orders: list[SubmitRequest | CloseRequest] = []

    async def accept(message: BusMessage) -> None:
        order = decode(message.payload)
        assert isinstance(order, SubmitRequest | CloseRequest)
        orders.append(order)
        if message.respond is not None:
            await message.respond(encode(RequestAccepted(order.choice_id, order.epoch)))

    await MemoryBus(broker).subscribe(subjects.REQUESTS, accept)
    async with mesh_client(model_dir, broker, store) as generation:
        yield generation, orders


class Gateways:
    """Gateways over one broker and one store."""

    def __init__(
        self, stack: AsyncExitStack, text: ChatText, model_dir: Path, new_bus: NewBus, store: MeshStore
    ) -> None:
        self.store, self.new_bus = store, new_bus
        self.worker = Worker(new_bus, store)
        self.generations: list[MeshGeneration] = []
        self._stack, self._text, self._model_dir = stack, text, model_dir

    async def start(self, name: str) -> Starlette:
        """Start one; return its API."""
        settings = GatewaySettings(service_id=name, model_dir=self._model_dir, model_name=MODEL, resume_s=5.0)
        member = Member(name, MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
        service = ServiceHost(settings, await self.new_bus(), self.store, ControlServer(LOOPBACK, 0), member)
        host = await self._stack.enter_async_context(service.joined())
        metrics = GatewayMetrics(CollectorRegistry(), MODEL)
        generation = MeshGeneration(host, settings.submission, metrics)
        await generation.start()
        self.generations.append(generation)
        keeping = settings.keeping(member)
        running = OwnedRequests(generation, host.store, metrics, keeping, journaled_loop(host, keeping))
        keep = partial(KeptRequests, running, metrics)
        return create_app(generation, self._text, ApiOptions(MODEL), metrics, open_to(), keep, host.clock.now)

    async def lose(self, *choice_ids: str) -> None:
        """Let the attempts of the first gateway's choices end with their worker."""
        for choice_id in choice_ids:
            attempt_id = self.generations[0]._role._requests.get(choice_id).attempt_id
            lost = TokenDelta(attempt_id, 0, None, FinishReason.ERROR, error="lost", retryable=True)
            inbox = subjects.inbox_from(MeshRole.WORKER, "g0", 1)
            await (await self.new_bus()).publish(inbox, encode(TokenBatch("w0", (lost,))))


@asynccontextmanager
async def gateways_over(new_bus: NewBus, store: MeshStore, text: ChatText, model_dir: Path) -> AsyncIterator[Gateways]:
    """No gateway yet, and the worker."""
    async with AsyncExitStack() as stack:
        opened = Gateways(stack, text, model_dir, new_bus, store)
        await opened.worker.start()
        stack.push_async_callback(opened.worker.close)
        yield opened


@asynccontextmanager
async def gateways_in_memory(
    text: ChatText, model_dir: Path, store: MemoryStore | None = None
) -> AsyncIterator[tuple[Gateways, Starlette, Starlette]]:
    """Two gateways, `g0` and `g1`, and the worker."""
    broker = MemoryBroker()

    async def new_bus() -> MessageBus:
        return MemoryBus(broker)

    async with gateways_over(new_bus, store or MemoryStore(), text, model_dir) as mesh:
        yield mesh, await mesh.start("g0"), await mesh.start("g1")
