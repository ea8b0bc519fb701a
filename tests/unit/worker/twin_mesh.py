"""Workers with everything real but the world: in-memory bus, store and transfer plane, and an engine that adds numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from spotwise.core.messages import mesh as m
from spotwise.core.messages.numerics import Numerics
from spotwise.core.requests.record import KvTarget, RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.core.worker.policy import WorkerPolicy
from spotwise.engine.engine import Engine
from spotwise.engine.kv.host_swap import HostSwap
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.runtime import WorkerRuntime
from tests.contracts.waiting import until
from tests.fakes.memory import FakeClock, MemoryBroker, MemoryBus, MemoryStore
from tests.fakes.memory_kv import MemoryKvNetwork, MemoryKvTransport
from tests.unit.worker.summing_engine import BLOCKS, ByteHost, SummingEngine

LEASE_S = 5.0
MessageT = TypeVar("MessageT")


class TwinMesh:
    """A broker, a store and a transfer network; a gateway and a scheduler that only listen; and the workers.

    Attributes:
        policy, heartbeat_s, host_blocks, numerics: of workers that start.
    """

    def __init__(self, max_payload_bytes: int = 1 << 20) -> None:
        self.policy = WorkerPolicy()
        self.heartbeat_s = 0.01
        self.host_blocks = 0
        self.numerics: Numerics | None = None
        self.clock = FakeClock()
        self.broker = MemoryBroker(max_payload_bytes)
        self.store = MemoryStore(self.clock)
        self.network = MemoryKvNetwork()
        self.bus = MemoryBus(self.broker)
        self.received: list[Any] = []
        self._assignments = 0

    async def start(self) -> None:
        async def on_message(raw: BusMessage) -> None:
            self.received.append(decode(raw.payload))

        for subject in (subjects.inbox("gateway", 0), subjects.inbox("scheduler"), subjects.HEARTBEATS):
            await self.bus.subscribe(subject, on_message)

    @asynccontextmanager
    async def worker(self, worker_id: str) -> AsyncIterator[TwinWorker]:
        async with AsyncExitStack() as stack:
            worker = TwinWorker(self, worker_id)
            await worker.start(stack)
            yield worker

    async def order(self, worker_id: str, order: m.Message) -> None:
        await self.bus.publish(subjects.inbox_from(MeshRole.SCHEDULER, worker_id), encode(order))

    async def message_of(self, kind: type[MessageT], choice_id: str) -> MessageT:
        """Wait for the scheduler's or gateway's message of this kind about a request."""
        found: list[Any] = []

        def look() -> bool:
            found[:] = [each for each in self.received if isinstance(each, kind)]
            found[:] = [each for each in found if each.choice_id == choice_id]
            return bool(found)

        await until(look)
        return cast(MessageT, found[-1])

    async def write(self, choice_id: str, prompt: tuple[int, ...], count: int, attempt_id: int, **fields: Any) -> None:
        stop = StopCriteria(max_new_tokens=count)
        sampling = fields.pop("sampling", SamplingParams())
        record = RequestRecord(choice_id, 1, "gateway", attempt_id, "sums", prompt, (), sampling, stop, 0.0, **fields)
        await self.store.put_record(record)

    async def reserve(self, worker_id: str, choice_id: str, prompt_tokens: int, new: int, attempt_id: int) -> None:
        self._assignments += 1
        stream = m.StreamRef("gateway", attempt_id)
        tokens = prompt_tokens + new
        order = m.ReserveKv(choice_id, 1, stream, "scheduler", self._assignments, tokens, new, LEASE_S)
        await self.order(worker_id, order)

    async def assign(
        self,
        prompt_worker: str,
        token_worker: str,
        choice_id: str,
        prompt: tuple[int, ...],
        count: int,
        attempt_id: int,
        **fields: Any,
    ) -> None:
        """Write a request's record, and do for it what a scheduler does."""
        await self.write(choice_id, prompt, count, attempt_id, **fields)
        target = KvTarget(prompt_worker, 1, "", ())
        if prompt_worker != token_worker:
            await self.reserve(token_worker, choice_id, len(prompt), count, attempt_id)
            target = (await self.message_of(m.KvReserved, choice_id)).target
        self._assignments += 1
        stream = m.StreamRef("gateway", attempt_id)
        order = m.StartPrefill(
            choice_id, 1, stream, "scheduler", self._assignments, len(prompt), target, LEASE_S, count
        )
        await self.order(prompt_worker, order)

    def states(self, worker_id: str) -> set[m.MemberState]:
        return {beat.state for beat in self.beats(worker_id)}

    def beats(self, worker_id: str) -> list[m.Member]:
        return [each for each in self.received if isinstance(each, m.Member) and each.id == worker_id]

    def deltas(self, attempt_id: int) -> list[m.TokenDelta]:
        batches = [each for each in self.received if isinstance(each, m.TokenBatch)]
        return [delta for batch in batches for delta in batch.deltas if delta.attempt_id == attempt_id]

    def senders(self, attempt_id: int) -> list[str]:
        batches = [each for each in self.received if isinstance(each, m.TokenBatch)]
        return [batch.worker_id for batch in batches for delta in batch.deltas if delta.attempt_id == attempt_id]

    async def end_of(self, attempt_id: int) -> m.TokenDelta:
        await until(lambda: [each for each in self.deltas(attempt_id) if each.finish_reason])
        return self.deltas(attempt_id)[-1]

    async def tokens(self, attempt_id: int) -> list[int | None]:
        await self.end_of(attempt_id)
        return [delta.token_id for delta in self.deltas(attempt_id)]


class TwinWorker:
    """One worker of a `TwinMesh`."""

    def __init__(self, mesh: TwinMesh, worker_id: str) -> None:
        self.id = worker_id
        self.engine = SummingEngine()
        self.served: asyncio.Task[None] | None = None
        self._mesh = mesh

    async def start(self, stack: AsyncExitStack) -> None:
        mesh = self._mesh
        settings = ServiceSettings(service_id=self.id, heartbeat_s=mesh.heartbeat_s)
        kind = m.MemberKind.TOKEN_WORKER
        member = m.Member(self.id, kind, 7, m.MemberState.STARTING, "host", 1, "host:1", m.Pool.MIXED)
        member = replace(member, numerics=mesh.numerics)
        control = ControlServer(LOOPBACK, 0)
        bus = MemoryBus(mesh.broker)
        stack.push_async_callback(control.close)
        stack.push_async_callback(bus.close)
        joining = ServiceHost(settings, bus, mesh.store, control, member, mesh.clock).joined()
        self.host = await stack.enter_async_context(joining)
        self.swap = ByteHost(self.engine.kv, mesh.host_blocks)
        self.thread = EngineThread(
            cast(Engine, self.engine), host=cast(HostSwap, self.swap) if mesh.host_blocks else None
        )
        stack.callback(self.thread.close)
        self.transport = MemoryKvTransport(
            mesh.network,
            self.engine.kv,
            self.id,
            7,
            lambda handoff, report: self.runtime.handoff_arrived(handoff, report),
        )
        await self.transport.start()
        stack.push_async_callback(self.transport.close)
        self.runtime = WorkerRuntime(self.host, self.thread, self.transport, mesh.policy)
        await self.runtime.start()
        self.served = asyncio.create_task(self.host.run())
        stack.push_async_callback(self.stop)

    async def stop(self) -> None:
        self.engine.gate.set()
        self.host.stop()
        assert self.served is not None
        await self.served

    async def idle(self) -> None:
        """Wait until nothing is held: no sequence in the engine, no block."""

        def is_idle() -> bool:
            load = self.runtime.role.load()
            sequences = (load.waiting, load.waiting_for_kv, load.running, load.migrating, self.engine.num_sequences)
            return load.kv_blocks_free == BLOCKS and not any(sequences)

        await until(is_idle)
