"""Anything on the subjects of a mesh: garbage, messages of others, old and repeated ones. It is counted, and costs nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry

from spotwise.cluster_scheduler.__main__ import SchedulerService
from spotwise.cluster_scheduler.metrics import SchedulerMetrics
from spotwise.cluster_scheduler.settings import SchedulerSettings
from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import GenerationError
from spotwise.mesh.nats.bus import NatsBus
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.metrics_server import HostMetrics
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.message_codec import MalformedMessageError
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.property.any_messages import any_message

pytestmark = pytest.mark.mesh

SPEC = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(8))
MESSAGES = get_args(m.Message)


def value_of(metrics: HostMetrics, name: str, label: str) -> float:
    """One sample of a member's series."""
    samples = (sample for family in metrics.collect() for sample in family.samples)
    return next(s.value for s in samples if s.name == name and label in s.labels.values())


def dropped(metrics: HostMetrics, reason: str) -> float:
    return value_of(metrics, "spotwise_messages_dropped_total", reason)


class HostileMesh:
    """A gateway's mesh and a scheduler over a real broker and store, and a hostile publisher there."""

    def __init__(self, scheduler: ServiceHost, gateway: ServiceHost, generation: MeshGeneration, bus: NatsBus) -> None:
        self.scheduler, self.gateway, self.generation, self.bus = scheduler, gateway, generation, bus
        to_gateway = gateway.id, gateway.member.incarnation
        self.subjects = {
            scheduler: [
                *(subjects.inbox_from(role, scheduler.id) for role in MeshRole),
                *(subjects.REQUESTS, subjects.FLEET),
            ],
            gateway: [subjects.inbox_from(role, *to_gateway) for role in MeshRole],
        }

    @property
    def everywhere(self) -> list[str]:
        return [
            *(each for own in self.subjects.values() for each in own),
            subjects.heartbeat(MemberKind.GATEWAY, "unknown"),
        ]

    async def serves(self) -> None:
        """Both members answer: the scheduler rejects, for there is no worker, and the gateway says so."""
        with pytest.raises(GenerationError) as raised:
            async for _ in self.generation.generate("r", SPEC):
                pass
        assert raised.value.code == m.RejectCode.NO_WORKERS


@pytest.fixture
async def mesh(nats_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[HostileMesh]:
    (tmp_path / "config.json").write_text("{}")  # a model's folder, as far as the gateway's mesh looks
    where: dict[str, Any] = {"nats_url": nats_url, "redis_url": redis_url, "heartbeat_s": 0.1}
    scheduler_settings = SchedulerSettings(service_id="scheduler-1", max_unready_s=0.0, **where)
    gateway_settings = GatewaySettings(service_id="gateway-1", model_dir=tmp_path, **where)
    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(ServiceHost.open(scheduler_settings, MemberKind.CLUSTER_SCHEDULER))
        gateway = await stack.enter_async_context(ServiceHost.open(gateway_settings, MemberKind.GATEWAY))
        generation = MeshGeneration(gateway, gateway_settings.submission, GatewayMetrics(CollectorRegistry(), "tiny"))
        service = SchedulerService(scheduler, scheduler_settings, SchedulerMetrics(scheduler.metrics.registry))
        stack.push_async_callback(service.close)
        await service.start()
        await generation.start()
        bus = await NatsBus.connect(nats_url, "intruder")
        stack.push_async_callback(bus.close)
        yield HostileMesh(scheduler, gateway, generation, bus)


async def test_garbage_is_counted_and_costs_nothing(mesh: HostileMesh) -> None:
    """Random bytes, damaged messages, and ones as large as the broker carries, on every subject."""
    rng = random.Random(7)
    whole = encode(m.TokenBatch("w", tuple(m.TokenDelta(1, index, 5) for index in range(2000)), 1, 1))
    for subject in mesh.everywhere:
        for _ in range(200):
            cut = rng.randrange(1, len(whole))
            payload = rng.choice([rng.randbytes(rng.randrange(1, 60)), whole[:cut] + b"\xff", b""])
            await mesh.bus.publish(subject, payload)
        await mesh.bus.publish(subject, rng.randbytes(mesh.bus.max_payload_bytes))
    for host in mesh.subjects:
        await until(lambda host=host: dropped(host.metrics, "malformed") >= 200)  # type: ignore[misc]
    await mesh.serves()
    assert all(dropped(host.metrics, "failed") == 0 for host in mesh.subjects)


async def test_messages_of_others_are_counted_and_dropped(mesh: HostileMesh) -> None:
    """A heartbeat for another member, what a member does not take on that subject, and what its sender's role may not send."""
    posing = Member("scheduler-1", MemberKind.CLUSTER_SCHEDULER, 2**63, MemberState.LEFT, "host", 1, "")
    await mesh.bus.publish(subjects.heartbeat(MemberKind.CLUSTER_SCHEDULER, "intruder"), encode(posing))
    await mesh.bus.publish(subjects.inbox_from(MeshRole.WORKER, "scheduler-1"), encode(posing))
    await mesh.bus.publish(subjects.REQUESTS, encode(m.RequestAccepted("r", 1)))
    for sender in ("worker", "unknown"):
        inbox = subjects.inbox("scheduler-1").replace("*", sender)
        await mesh.bus.publish(inbox, encode(m.AttemptsConfirmed((("r", 1),))))
    await until(lambda: dropped(mesh.gateway.metrics, "wrong_sender") == 1)
    await until(lambda: dropped(mesh.scheduler.metrics, "unexpected") == 2)
    await until(lambda: dropped(mesh.scheduler.metrics, "wrong_sender") == 3)
    await mesh.serves()


async def test_well_formed_messages_of_any_content_end_no_member(mesh: HostileMesh) -> None:
    """Each type of message, on each subject, with ids, epochs and numbers that the members know and that they do not; all of it
    twice. Nothing raises, and once the time for it is over nothing is held.
    """
    rng = random.Random(11)
    sent: list[tuple[str, bytes]] = []
    for subject in mesh.everywhere:
        for kind in MESSAGES * 5:
            try:
                payload = encode(any_message(rng, kind))
                decode(payload)
            except (MalformedMessageError, ValueError, TypeError):
                continue  # no member can send that, or it is malformed
            sent.append((subject, payload))
    for subject, payload in [*sent, *sent]:
        await mesh.bus.publish(subject, payload)
    for host, own in mesh.subjects.items():
        for subject in own:  # the last on it: what came before has been handled
            await mesh.bus.publish(subject, b"\xff")
        await until(lambda host=host, own=own: dropped(host.metrics, "malformed") >= len(own))  # type: ignore[misc]
        assert dropped(host.metrics, "unexpected") > 100
        assert dropped(host.metrics, "wrong_sender") > 100
    await mesh.serves()
    assert [dropped(host.metrics, "failed") for host in mesh.subjects] == [0, 0]
    assert value_of(mesh.gateway.metrics, "spotwise_entries", "open_requests") == 0
