"""One member of the mesh over a real broker, store and gRPC: how it joins, what it reports, how it leaves."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from spotwise.core.messages.members import Member, MemberKind, MemberState, WorkerLoad
from spotwise.core.messages.mesh import LedgerEntry, RequestAccepted
from spotwise.core.messages.worker import CancelRequest
from spotwise.mesh.grpc.control import is_serving
from spotwise.mesh.ports.ports import BusMessage, MeshError, PayloadTooLargeError
from spotwise.mesh.process.logs import LoggedErrors
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import PATIENCE_S, until
from tests.integration.onlooker import Onlooker, heard_on
from tests.integration.running_services import serving

pytestmark = pytest.mark.mesh


async def test_a_member_joins_serves_and_leaves(settings: ServiceSettings, onlooker: Onlooker) -> None:
    """STARTING and not healthy; READY and healthy; LEFT, unregistered, with no answer to health checks."""
    async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host:
        address = host.member.grpc_address
        assert await onlooker.registered() == [MemberState.STARTING]
        assert not await is_serving(address)
        async with serving(host):
            await until(lambda: MemberState.READY in onlooker.states())
            assert await onlooker.registered() == [MemberState.READY]
            assert await is_serving(address)
        assert not await is_serving(address)
        assert await onlooker.registered() == [MemberState.READY]
    await until(lambda: MemberState.LEFT in onlooker.states())
    assert onlooker.states() == [MemberState.STARTING, MemberState.READY, MemberState.LEFT]
    assert await onlooker.registered() == []
    assert not await is_serving(address, timeout_s=0.5)
    first = onlooker.heard[0]
    assert {replace(member, state=first.state) for member in onlooker.heard} == {first}
    assert (first.id, first.kind, first.pid) == ("member-1", MemberKind.SPOT_WATCHER, os.getpid())


async def test_a_later_start_has_a_higher_incarnation(settings: ServiceSettings, onlooker: Onlooker) -> None:
    incarnations: list[int] = []
    for _ in range(2):
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host:
            incarnations.append(host.member.incarnation)
    assert incarnations[0] < incarnations[1]


async def test_heartbeats_say_what_the_service_describes(settings: ServiceSettings, onlooker: Onlooker) -> None:
    """State and load are read from the service at each beat; LEFT is the host's own."""
    running = 0

    def describe(member: Member) -> Member:
        return replace(member, state=MemberState.DRAINING, load=WorkerLoad(running=running))

    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER) as host:
        host.introduce(model="a-model", transfer_address="here:1")
        host.describe_with(describe)
        async with serving(host):
            await until(lambda: onlooker.heard and onlooker.heard[-1].load == WorkerLoad(running=0))
            running = 3
            await until(lambda: onlooker.heard[-1].load == WorkerLoad(running=3))
            beat = onlooker.heard[-1]
            assert (beat.state, beat.model, beat.transfer_address) == (MemberState.DRAINING, "a-model", "here:1")
            assert [member.model for member in await onlooker.store.members()] == ["a-model"]
    await until(lambda: onlooker.heard[-1].state is MemberState.LEFT)
    assert onlooker.heard[-1].load is None


async def test_a_member_that_takes_long_to_start_is_heard_of(settings: ServiceSettings, onlooker: Onlooker) -> None:
    """Its watchers must not take it for lost."""
    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER):
        await until(lambda: len(onlooker.heard) >= 5)
        assert {member.state for member in onlooker.heard} == {MemberState.STARTING}


async def test_a_registration_is_renewed_as_long_as_the_member_lives(
    settings: ServiceSettings, onlooker: Onlooker
) -> None:
    """Beyond its time to live; a member that died without a word is forgotten by then."""
    async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, serving(host):
        await asyncio.sleep(settings.member_timeout_s * 2.5)
        assert await onlooker.registered() == [MemberState.READY]


async def test_what_a_member_posts_leaves_in_order(settings: ServiceSettings, onlooker: Onlooker) -> None:
    """All messages to one inbox arrive in order, including those sent just before the end."""
    orders = [CancelRequest(f"r{number}", number) for number in range(200)]
    heard = await heard_on(onlooker.bus, subjects.inbox("other"))
    async with ServiceHost.open(settings, MemberKind.CLUSTER_SCHEDULER) as host:
        for order in orders:
            host.send("other", order)
    await until(lambda: len(heard) == len(orders))
    assert [decode(each) for each in heard] == orders


async def test_a_message_too_large_is_refused_where_it_is_posted(settings: ServiceSettings, onlooker: Onlooker) -> None:
    """A message above the broker's limit is refused with its kind and both sizes, and the next one is sent."""
    heard = await heard_on(onlooker.bus, subjects.inbox("other"))
    async with ServiceHost.open(settings, MemberKind.CLUSTER_SCHEDULER) as host:
        limit = host.bus.max_payload_bytes
        with pytest.raises(PayloadTooLargeError, match=rf"a CancelRequest of \d+ bytes .* {limit} bytes"):
            host.send("other", CancelRequest("x" * limit, 1))
        host.send("other", CancelRequest("x", 1))
        await until(lambda: heard)


async def test_ledger_entries_are_written_with_the_next_beat_and_at_the_end(
    settings: ServiceSettings, onlooker: Onlooker
) -> None:
    early, late = (LedgerEntry("r", 1, stage, "member-1", at_s, ()) for stage, at_s in (("early", 1.0), ("late", 2.0)))
    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER) as host:
        async with serving(host):
            host.record(early)
            while await onlooker.store.get_ledger("r") != [early]:  # noqa: ASYNC110 - the store has no event
                await asyncio.sleep(0.01)
        host.record(late)
    assert await onlooker.store.get_ledger("r") == [early, late]


async def test_a_malformed_message_is_logged_and_survived(settings: ServiceSettings, onlooker: Onlooker) -> None:
    heard: list[object] = []

    async def handler(message: CancelRequest, raw: BusMessage) -> None:
        if message.epoch == 0:
            raise RuntimeError("a bug")
        heard.append(message)

    inbox = subjects.inbox_from(MeshRole.SCHEDULER, "member-1")
    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER) as host:
        with capture_logs() as logs:
            await host.listen(subjects.inbox("member-1"), handler)
            for payload in (b"\xff\xff garbage", b"", encode(CancelRequest("r", 0)), encode(CancelRequest("r", 1))):
                await onlooker.bus.publish(inbox, payload)
            await until(lambda: heard)
    assert heard == [CancelRequest("r", 1)]
    told = [(each["event"], each.get("subject") or each.get("on")) for each in logs if each["log_level"] != "info"]
    assert told == [("message_dropped", inbox), ("message_dropped", inbox), ("event_failed", inbox)]


async def test_a_handler_can_answer(settings: ServiceSettings, onlooker: Onlooker) -> None:
    async def handler(message: CancelRequest, raw: BusMessage) -> None:
        assert raw.respond is not None
        await raw.respond(encode(RequestAccepted(message.choice_id, message.epoch)))

    async with ServiceHost.open(settings, MemberKind.CLUSTER_SCHEDULER) as host:
        await host.listen("test.ask", handler, queue="group")
        reply = await onlooker.bus.request("test.ask", encode(CancelRequest("r", 4)), PATIENCE_S)
    assert decode(reply) == RequestAccepted("r", 4)


async def test_background_work_that_fails_ends_the_service(settings: ServiceSettings, onlooker: Onlooker) -> None:
    async def fails() -> None:
        raise RuntimeError("a bug")

    with capture_logs() as logs, pytest.raises(MeshError, match="failing: a bug"):
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, asyncio.timeout(PATIENCE_S):
            host.spawn(fails(), "failing")
            await host.run()
    assert [each["task"] for each in logs if each["event"] == "task_failed"] == ["failing"]
    await until(lambda: onlooker.states()[-1] is MemberState.LEFT)


async def test_periodic_work_waits_for_a_mesh_that_is_away(settings: ServiceSettings) -> None:
    times = 0

    async def work() -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise MeshError("away")

    with capture_logs() as logs:
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, serving(host):
            host.every(0.01, work, "look")
            await until(lambda: times >= 3)
    assert [(each["work"], each["error"]) for each in logs if each["log_level"] == "warning"] == [("look", "away")]


def test_the_edge_logs_what_it_stops_and_nothing_else() -> None:
    """An exception ends there, with the event's name and its traceback; a cancellation does not."""
    with capture_logs() as logs, LoggedErrors("Tick"):
        raise ValueError("a bug")
    assert [(each["event"], each["on"]) for each in logs] == [("event_failed", "Tick")]
    assert logs[0]["exc_info"]
    with pytest.raises(asyncio.CancelledError), capture_logs() as logs, LoggedErrors("Tick"):
        raise asyncio.CancelledError
    assert logs == []
