"""What a member does on its host: heartbeats, the end of its work, stop signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.servers import LOOPBACK
from spotwise.mesh.grpc.control import ControlServer
from spotwise.mesh.ports.ports import BusMessage
from spotwise.mesh.process.background_work import end_tasks, uninterrupted
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import call_on_stop_signals
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from tests.contracts.waiting import PATIENCE_S, until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore


def member_of(bus: MemoryBus, store: MemoryStore | None = None, **options: Any) -> ServiceHost:
    """A token worker that starts."""
    member = Member("member-1", MemberKind.TOKEN_WORKER, 1, MemberState.STARTING, "a-host", 1, f"{LOOPBACK}:1")
    settings = ServiceSettings(service_id="member-1", **options)
    return ServiceHost(settings, bus, store or MemoryStore(), ControlServer(LOOPBACK, 0), member)


async def test_news_is_sent_before_its_turn_and_several_are_one() -> None:
    """News is sent ahead of the next heartbeat, several in one message, which holds the state of that moment."""
    bus, pids = MemoryBus(MemoryBroker()), [1]
    reported: list[int] = []

    async def on_heartbeat(raw: BusMessage) -> None:
        reported.append(decode(raw.payload).pid)

    await bus.subscribe(subjects.HEARTBEATS, on_heartbeat)
    host = member_of(bus, heartbeat_s=10 * PATIENCE_S)
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
    host = member_of(bus, heartbeat_s=10 * PATIENCE_S)
    heard: list[str] = []

    async def on_member(other: Member, _raw: BusMessage) -> None:
        heard.append(other.host)

    async with host.joined():
        await host.listen(subjects.HEARTBEATS, on_member)
        worker = replace(host.member, id="token-0")
        for subject, other in (
            (subjects.heartbeat(MemberKind.GATEWAY, "gateway-1"), replace(worker, host="forged kind")),
            (subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-1"), replace(worker, host="forged id")),
            (subjects.heartbeat(MemberKind.TOKEN_WORKER, "token-0"), replace(worker, host="genuine")),
        ):
            await bus.publish(subject, encode(other))
        await until(lambda: "genuine" in heard)
    assert heard == ["genuine"]


async def test_a_member_leaves_though_its_work_swallows_a_cancellation() -> None:
    """A member leaves although its task swallows a cancellation, as redis-py with `asyncio.wait_for` on Python 3.11."""
    store = MemoryStore()
    host = member_of(MemoryBus(MemoryBroker()), store)
    began, cancellations = asyncio.Event(), 0

    async def deaf_once() -> None:
        nonlocal cancellations
        began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancellations += 1
            if cancellations > 1:
                raise

    async with asyncio.timeout(PATIENCE_S / 2):
        async with host.joined():
            host.every(0.0, deaf_once, "deaf")
            await began.wait()
    assert cancellations == 2
    assert await store.members() == []


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
async def _handlers() -> AsyncIterator[None]:
    yield
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


@pytest.fixture
async def host() -> AsyncIterator[ServiceHost]:
    async with member_of(MemoryBus(MemoryBroker())).joined() as host:
        yield host


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
async def test_the_first_signal_lets_it_leave_and_further_ones_stop_it(
    first: signal.Signals, second: signal.Signals
) -> None:
    acts: list[str] = []
    call_on_stop_signals(lambda: acts.append("leave"), lambda: acts.append("stop"))
    for count, number in enumerate((first, second, second), start=1):
        os.kill(os.getpid(), number)
        await until(lambda count=count: len(acts) == count)  # type: ignore[misc]
    assert acts == ["leave", "stop", "stop"]


async def test_a_member_that_drains_is_stopped_by_a_second_signal(host: ServiceHost) -> None:
    """Whatever it still holds."""
    began = asyncio.Event()
    host.leave = began.set
    serving = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(began.wait(), 5)
    assert not serving.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(serving.done)


async def test_a_member_that_does_not_drain_stops_at_the_first(host: ServiceHost) -> None:
    """As control services do, and gateways."""
    serving = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(serving.done)


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    """Server clients sometimes swallow a cancellation; a wait for such a task must end all the same."""
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                lost += 1
        await asyncio.sleep(3600)

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(3600))]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end_tasks(tasks)
    assert lost == 2
    assert all(task.cancelled() for task in tasks)


async def test_the_error_of_a_task_is_not_raised() -> None:
    async def fail() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise RuntimeError("too late")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_tasks([task])
    assert isinstance(task.exception(), RuntimeError)
    await end_tasks([])


async def test_work_that_must_not_be_interrupted_is_not() -> None:
    """However often its caller is cancelled; that is cancelled afterwards, and an error of the work comes first."""
    done = asyncio.Event()

    async def work(error: Exception | None = None) -> None:
        await asyncio.sleep(0.1)
        done.set()
        if error is not None:
            raise error

    for error in (None, ValueError("broken")):
        done.clear()
        caller = asyncio.create_task(uninterrupted(work(error)))
        for _ in range(3):
            await asyncio.sleep(0.01)
            caller.cancel()
        with pytest.raises(asyncio.CancelledError if error is None else ValueError):
            await caller
        assert done.is_set()
