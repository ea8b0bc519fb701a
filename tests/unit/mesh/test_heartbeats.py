"""When a member sends heartbeats."""

from __future__ import annotations

from dataclasses import replace

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import PATIENCE_S, until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore


async def test_news_is_sent_before_its_turn_and_several_are_one() -> None:
    """News is sent ahead of the next heartbeat, several in one message, which holds the state of that moment."""
    bus, pids = MemoryBus(MemoryBroker()), [1]
    reported: list[int] = []

    async def on_heartbeat(raw: BusMessage) -> None:
        reported.append(decode(raw.payload).pid)

    await bus.subscribe(subjects.HEARTBEATS, on_heartbeat)
    member = Member("member-1", MemberKind.TOKEN_WORKER, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:1")
    settings = ServiceSettings(service_id="member-1", heartbeat_s=10 * PATIENCE_S)
    host = ServiceHost(settings, bus, MemoryStore(), ControlServer(LOOPBACK, 0), member)
    host.describe_with(lambda member: replace(member, pid=pids[-1]))
    async with host.joined():
        host.spawn(host.serve(), "serve")
        await until(lambda: reported == [1, 1])  # joined, and ready
        for pid in (2, 3, 4):
            pids.append(pid)
            host.beat_soon()
        await until(lambda: reported == [1, 1, 4])
        pids.append(5)
        host.beat_soon()
        await until(lambda: reported == [1, 1, 4, 5])


async def test_a_heartbeat_on_anothers_subject_is_dropped() -> None:
    """A broker lets a member publish on its own subject only, so a heartbeat that names another member or kind is forged."""
    bus = MemoryBus(MemoryBroker())
    member = Member("member-1", MemberKind.GATEWAY, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:1")
    settings = ServiceSettings(service_id="member-1", heartbeat_s=10 * PATIENCE_S)
    host = ServiceHost(settings, bus, MemoryStore(), ControlServer(LOOPBACK, 0), member)
    heard: list[str] = []

    async def on_member(other: Member, _raw: BusMessage) -> None:
        heard.append(other.host)

    async with host.joined():
        await host.listen(subjects.HEARTBEATS, on_member)
        worker = replace(member, id="token-0", kind=MemberKind.TOKEN_WORKER)
        for subject, other in (
            (subjects.heartbeat(MemberKind.GATEWAY, "gateway-1"), replace(worker, host="forged kind")),
            (subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-1"), replace(worker, host="forged id")),
            (subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-0"), replace(worker, host="genuine")),
        ):
            await bus.publish(subject, encode(other))
        await until(lambda: "genuine" in heard)
    assert heard == ["genuine"]
