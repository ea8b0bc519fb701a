"""What a member's role may not send, and what comes of it at each kind of receiver: it is counted, and has no effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from spotwise.cluster_scheduler.__main__ import SchedulerService
from spotwise.cluster_scheduler.metrics import SchedulerMetrics
from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.core.messages import mesh as m
from spotwise.core.requests.record import KvTarget
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.settings import GatewaySettings
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBus, MemoryStore
from tests.unit.core.builders import plain_member
from tests.unit.migration_planner.test_planner import planning
from tests.unit.worker.twin_mesh import TwinMesh

STREAM = m.StreamRef("gateway-0", 1)
TARGET = KvTarget("token-0", 1, "h:1", (0,))
LATEST = 2**62

#: By the receiver: what a role sends that only others may.
FORGED: dict[str, list[tuple[MeshRole, m.Message]]] = {
    "worker": [
        (MeshRole.GATEWAY, m.CancelRequest("r", 1, term=LATEST)),
        (MeshRole.GATEWAY, m.ReserveKv("r", 1, STREAM, "scheduler-0", 1, 9, 3, 5.0, term=LATEST)),
        (MeshRole.GATEWAY, m.ChangeHomePool("w", m.Pool.PROMPT, LATEST)),
        (MeshRole.GATEWAY, m.ForgetGateway("gateway-1", 1, LATEST)),
        (MeshRole.GATEWAY, m.MoveRequest("r", 1, "gateway-0", "token-1", LATEST)),
        (MeshRole.GATEWAY, m.GiveBackRequest("r", 1, "forged", LATEST)),
        (MeshRole.GATEWAY, m.SurveyWorker("gateway-0", 1)),
        (MeshRole.WORKER, m.CancelRequest("r", 1, term=LATEST)),
        (MeshRole.WORKER, m.ChangeHomePool("w", m.Pool.PROMPT, LATEST)),
        (MeshRole.SCHEDULER, m.MoveRequest("r", 1, "scheduler-0", "token-1", LATEST)),
        (MeshRole.PLANNER, m.CancelRequest("r", 1, LATEST)),
        (MeshRole.OPERATOR, m.GiveBackRequest("r", 1, "forged", LATEST)),
        (MeshRole.WATCHER, m.AttemptsConfirmed((("r", 1),))),
    ],
    "gateway": [
        (MeshRole.GATEWAY, m.TokenBatch("token-0", (m.TokenDelta(1, 0, 5),))),
        (MeshRole.WORKER, m.RequestRejected("r", 1, m.RejectCode.NO_WORKERS, "forged")),
        (MeshRole.PLANNER, m.RequestAssigned("r", 1, "prompt-0", "token-0")),
        (MeshRole.OPERATOR, m.ConfirmAttempts("token-0", (("r", 1),))),
        (MeshRole.SCHEDULER, m.RequestMoved("r", 1, 1, "token-1", "token-0", 1)),
    ],
    "scheduler": [
        (MeshRole.GATEWAY, m.KvReserved("r", 1, 1, TARGET)),
        (MeshRole.GATEWAY, m.KvRefused("r", 1, 1, "token-0", "forged")),
        (MeshRole.WORKER, m.AttemptsConfirmed((("r", 1),))),
        (MeshRole.SCHEDULER, m.PrefillAccepted("r", 1, 1, "token-0")),
        (MeshRole.PLANNER, m.RequestMoved("r", 1, 1, "token-1", "token-0", 1)),
    ],
    "planner": [
        (MeshRole.GATEWAY, m.WorkerSurveyed("token-0", 1, None, ())),
        (MeshRole.SCHEDULER, m.MoveEnded("r", 1, "token-0", "token-1", m.MoveOutcome.MOVED)),
        (MeshRole.OPERATOR, m.GroupFormed("token-0", 1, 0, 0, 0)),
    ],
}
#: By the receiver: what its sender may send.
GENUINE: dict[str, tuple[MeshRole, m.Message]] = {
    "worker": (MeshRole.SCHEDULER, m.CancelRequest("r", 1, 3)),
    "gateway": (MeshRole.WORKER, m.TokenBatch("token-0", (m.TokenDelta(1, 0, 5),))),
    "scheduler": (MeshRole.GATEWAY, m.AttemptsConfirmed((("r", 1),))),
    "planner": (MeshRole.WORKER, m.MoveEnded("r", 1, "token-0", "token-1", m.MoveOutcome.MOVED)),
}


class Receivers:
    """One member of each kind over an in-memory broker, and what their roles were fed."""

    def __init__(self, mesh: TwinMesh) -> None:
        self.mesh = mesh
        self.hosts: dict[str, ServiceHost] = {}
        self.fed: dict[str, list[Any]] = {}

    def add(self, name: str, host: ServiceHost, role: Any) -> None:
        fed = self.fed[name] = []
        handle = role.handle

        def watched(event: Any, now: float) -> Any:
            fed.append(event)
            return handle(event, now)

        role.handle = watched
        self.hosts[name] = host

    async def put(self, name: str, sender: MeshRole, message: m.Message) -> None:
        host = self.hosts[name]
        incarnation = host.member.incarnation if name == "gateway" else None
        await self.mesh.bus.publish(subjects.inbox_from(sender, host.id, incarnation), encode(message))

    def dropped(self, name: str, reason: str) -> float:
        value = self.hosts[name].metrics.registry.get_sample_value(
            "spotwise_messages_dropped_total", {"reason": reason}
        )
        assert value is not None
        return value


@pytest.fixture
async def receivers(tmp_path: Path) -> AsyncIterator[Receivers]:
    (tmp_path / "config.json").write_text("{}")  # a model's folder, as far as the gateway's mesh looks
    mesh = TwinMesh()
    found = Receivers(mesh)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(mesh.bus.close)

        async def joined(settings: ServiceSettings, kind: m.MemberKind) -> ServiceHost:
            control = ControlServer(LOOPBACK, 0)
            member = plain_member(settings.service_id, kind)
            host = ServiceHost(settings, MemoryBus(mesh.broker), MemoryStore(), control, member)
            return await stack.enter_async_context(host.joined())

        worker = await stack.enter_async_context(mesh.worker("w"))
        found.add("worker", worker.host, worker.runtime.role)
        gateway_settings = GatewaySettings(service_id="gateway-0", model_dir=tmp_path)
        gateway = await joined(gateway_settings, m.MemberKind.GATEWAY)
        generation = MeshGeneration(gateway, gateway_settings.submission, GatewayMetrics(CollectorRegistry(), "tiny"))
        await generation.start()
        found.add("gateway", gateway, generation._role)
        scheduler_settings = SchedulerSettings(service_id="scheduler-0")
        scheduler = await joined(scheduler_settings, m.MemberKind.CLUSTER_SCHEDULER)
        service = SchedulerService(scheduler, scheduler_settings, SchedulerMetrics(scheduler.metrics.registry))
        stack.push_async_callback(service.close)
        await service.start()
        found.add("scheduler", scheduler, service._role)
        planner = await stack.enter_async_context(planning(mesh.broker, MemoryStore()))
        found.add("planner", planner.host, planner.planner._loop._role)
        yield found


@pytest.mark.parametrize("name", FORGED)
async def test_what_a_role_may_not_send_is_counted_and_dropped(receivers: Receivers, name: str) -> None:
    """Each forged message is dropped for its sender; the genuine one after them arrives, and is all that does."""
    for sender, message in FORGED[name]:
        await receivers.put(name, sender, message)
    sender, genuine = GENUINE[name]
    await receivers.put(name, sender, genuine)
    await until(lambda: genuine in receivers.fed[name])
    forged = [message for _, message in FORGED[name]]
    assert receivers.dropped(name, "wrong_sender") == len(forged)
    assert not [each for each in receivers.fed[name] if each != genuine and each in forged]
    assert receivers.dropped(name, "unexpected") == receivers.dropped(name, "failed") == 0
