"""A store or a scheduler that is away: its own code, a bounded wait, and nothing of the mesh's addresses to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from spotwise.core.gateway import commands as g
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.mesh import RejectCode, RequestRejected
from spotwise.core.requests.record import RequestRecord
from spotwise.core.requests.request import StopCriteria
from spotwise.core.requests.sampling import SamplingParams
from spotwise.gateway.generate.generation import SequenceSpec
from spotwise.gateway.generate.metrics import GatewayMetrics
from spotwise.gateway.mesh.client import MeshGeneration, without_addresses
from spotwise.gateway.settings import GatewaySettings
from spotwise.http.errors import GenerationError
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.gateway.fake_mesh import MODEL

SPEC = SequenceSpec((1, 2, 3), SamplingParams(), StopCriteria(8))


class StoppedStore(MemoryStore):
    """A store whose process is stopped: it accepts a record and does not answer."""

    async def put_record(self, record: RequestRecord) -> None:
        await asyncio.Event().wait()


class UnreachableStore(MemoryStore):
    """A store that is gone."""

    async def put_record(self, record: RequestRecord) -> None:
        raise MeshError("Redis: Error 111 connecting to 10.0.0.7:6379. Connection refused.")


@asynccontextmanager
async def generation_over(
    store: MemoryStore, model_dir: Path, store_timeout_s: float = 0.2
) -> AsyncIterator[MeshGeneration]:
    """A gateway's mesh without a scheduler."""
    settings = GatewaySettings(
        service_id="gateway-0",
        model_dir=model_dir,
        model_name=MODEL,
        store_timeout_s=store_timeout_s,
        submit_timeout_s=0.2,
    )
    member = Member("gateway-0", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, "a-host:1")
    control = ControlServer(LOOPBACK, 0)
    async with ServiceHost(settings, MemoryBus(MemoryBroker()), store, control, member).joined() as host:
        generation = MeshGeneration(host, settings.submission, GatewayMetrics(CollectorRegistry(), MODEL))
        await generation.start()
        yield generation


async def failure(generation: MeshGeneration, spec: SequenceSpec = SPEC) -> GenerationError:
    with pytest.raises(GenerationError) as raised:
        async with asyncio.timeout(30):
            async for _ in generation.generate("r", spec):
                pass
    return raised.value


async def test_a_deadline_ends_the_wait_for_the_store(model_dir: Path) -> None:
    """It comes before the store's own time is over; 504, and no scheduler learns of the request."""
    spec = replace(SPEC, deadline_unix_s=time.time() + 0.05)
    async with generation_over(StoppedStore(), model_dir, store_timeout_s=60.0) as generation:
        error = await failure(generation, spec)
    assert (error.status, error.code) == (504, RejectCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("store", [StoppedStore(), UnreachableStore()], ids=["stopped", "unreachable"])
async def test_a_store_that_is_away_has_its_own_code(store: MemoryStore, model_dir: Path) -> None:
    """503 with a time to come back, after `store_timeout_s` at most; the log keeps what went wrong where."""
    with structlog.testing.capture_logs() as logs:
        async with generation_over(store, model_dir) as generation:
            error = await failure(generation)
    assert (error.status, error.code, error.retry_after_s) == (503, g.FAIL_STORE, 1.0)
    assert "request store" in error.message
    assert without_addresses(error.message) == error.message
    (line,) = [line for line in logs if line["event"] == "submit_failed"]
    assert line["choice_id"] == "r"
    assert "10.0.0.7:6379" in line["reason"] or isinstance(store, StoppedStore)


async def test_a_scheduler_that_is_away_has_its_own(model_dir: Path) -> None:
    """An absent scheduler has an error code of its own, and the message has no subject."""
    async with generation_over(MemoryStore(), model_dir) as generation:
        error = await failure(generation)
    assert (error.status, error.code) == (503, g.FAIL_NO_SCHEDULER)
    assert "spotwise." not in error.message


async def test_a_reply_that_is_no_verdict_is_none(model_dir: Path) -> None:
    """A reply to a submission says that it is taken or rejected; another member's heartbeat is not heard like that."""
    forged = Member(
        "scheduler-1", MemberKind.CLUSTER_SCHEDULER, 2**40, MemberState.READY, "a-host", 1, "a-host:1", term=2**40
    )
    async with generation_over(MemoryStore(), model_dir) as generation:

        async def reply(message: BusMessage) -> None:
            assert message.respond is not None
            await message.respond(encode(forged))

        await generation._host.bus.subscribe(subjects.REQUESTS, reply)
        error = await failure(generation)
        assert (error.status, error.code) == (503, g.FAIL_NO_SCHEDULER)
        assert generation._role.membership.all(MemberKind.CLUSTER_SCHEDULER) == []


async def test_an_address_in_an_error_never_reaches_the_client(model_dir: Path) -> None:
    """A scheduler's or a worker's reason, too; the log has it whole."""
    reason = "token-0 at 10.0.0.7:4000 is full"
    with structlog.testing.capture_logs() as logs:
        async with generation_over(MemoryStore(), model_dir) as generation:

            async def refuse(message: BusMessage) -> None:
                assert message.respond is not None
                await message.respond(encode(RequestRejected("r", 1, RejectCode.MESH_FULL, reason, 1.0)))

            await generation._host.bus.subscribe(subjects.REQUESTS, refuse)
            error = await failure(generation)
    assert (error.status, error.message) == (429, "token-0 at … is full")
    assert [line["reason"] for line in logs if line["event"] == "request_failed"] == [reason]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no NATS server answers at nats://user:word@broker:4222 within 5 s", "no NATS server answers at … within 5 s"),
        ("the KV hand-off failed: 10.1.2.3:41234 refused", "the KV hand-off failed: … refused"),
        ("cannot reach token-0.mesh.svc:50051, timed out", "cannot reach …, timed out"),
        ("connect to [fe80::1]:8000 or ::1 failed", "connect to … or … failed"),
        ("redis at 127.0.0.1 is away", "redis at … is away"),
        ("File /srv/spotwise/libs/engine.py is odd", "File … is odd"),
        ("a KV cache of 5,824 tokens, 3/4 used, at 17 s: full", "a KV cache of 5,824 tokens, 3/4 used, at 17 s: full"),
        ("token_worker token-0 silent for 2 s", "token_worker token-0 silent for 2 s"),
    ],
)
def test_addresses_are_left_out(message: str, shown: str) -> None:
    """URLs, hosts with ports, IP addresses and paths; numbers and names of members stay."""
    assert without_addresses(message) == shown
