"""A re-shape over the in-memory mesh: what the service performs, counts and answers, and what a journal of it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from spotwise.core.messages import mesh as m
from spotwise.core.messages.members import DevicePlace, Pool
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.planner.plan import ReshapeStage
from spotwise.mesh.ports.ports import BusMessage, ReplyTimeoutError
from spotwise.mesh.replay.journal_replay import find_journals, replay
from spotwise.wire import subjects
from spotwise.wire.codec import decode, encode
from spotwise.wire.roles import MeshRole
from tests.contracts.waiting import until
from tests.fakes.memory import MemoryBroker, MemoryBus, MemoryStore
from tests.unit.core.builders import plain_member, worker_member
from tests.unit.core.planner.reshape_bench import MODEL
from tests.unit.migration_planner.test_planner import planning

DEVICES = ("d0", "d1")


class TwoDevices:
    """A worker `mixed-0` of two shards, and its devices, which do what they are told."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.drains: list[m.Drain] = []
        self.members = {"mixed-0": worker_member("mixed-0", Pool.MIXED)}

    async def start(self) -> None:
        for device_id in DEVICES:
            self.members[device_id] = plain_member(device_id, m.MemberKind.DEVICE)
            await self._bus.subscribe(subjects.inbox(device_id), self._order)
        await self._bus.subscribe(subjects.NOTICES, self._drain)

    async def beat(self) -> None:
        for member in list(self.members.values()):
            await self._bus.publish(subjects.heartbeat(member.kind, member.id), encode(member))

    async def _order(self, raw: BusMessage) -> None:
        order = decode(raw.payload)
        if isinstance(order, m.SurveyDevice):
            device_id = next(each for each in DEVICES if fnmatchcase(raw.subject, subjects.inbox(each)))
            place = DevicePlace(1, 1, 2, 0, DEVICES.index(device_id), (0, 6), (0, 1))
            groups = (m.GroupMembership("mixed-0", place),)
            report = m.DeviceSurveyed(device_id, 1, order.number, MODEL, groups)
            await self._bus.publish(subjects.inbox_from(MeshRole.WORKER, order.sender_id), encode(report))
        else:
            assert isinstance(order, m.LeadGroup)
            self.members[order.worker_id] = worker_member(order.worker_id, order.pool)

    async def _drain(self, raw: BusMessage) -> None:
        drain = decode(raw.payload)
        assert isinstance(drain, m.Drain)
        self.drains.append(drain)
        left = replace(self.members.pop(drain.worker_id), state=m.MemberState.LEFT)
        await self._bus.publish(subjects.heartbeat(left.kind, left.id), encode(left))


@asynccontextmanager
async def two_devices(broker: MemoryBroker) -> AsyncIterator[tuple[TwoDevices, MemoryBus]]:
    bus = MemoryBus(broker)
    devices = TwoDevices(bus)
    await devices.start()

    async def beat() -> None:
        while True:
            await devices.beat()
            await asyncio.sleep(0.1)

    beating = asyncio.ensure_future(beat())
    try:
        yield devices, bus
    finally:
        beating.cancel()


async def order(bus: MemoryBus, config: str, *, dry_run: bool = False) -> m.ReshapeReply:
    payload = encode(m.ReshapeMesh(ParallelConfig.parse(config), dry_run))
    reply = decode(await bus.request(subjects.RESHAPE, payload, 5.0))
    assert isinstance(reply, m.ReshapeReply)
    return reply


async def test_a_re_shape_is_answered_stored_carried_out_counted_and_decided_again(tmp_path: Path) -> None:
    """A dry run first, which changes nothing, and an order that cannot be."""
    broker, store = MemoryBroker(), MemoryStore()
    async with two_devices(broker) as (devices, bus), planning(broker, store, journal=tmp_path) as planner:
        await until(lambda: planner.term > 0)
        await asyncio.sleep(0.3)  # for the first heartbeats
        dry = await order(bus, "1,2,1", dry_run=True)
        assert dry.accepted and dry.prediction is not None and dry.prediction.new_ids == ("mixed-c1-0",)
        refused = await order(bus, "3,1,1")
        assert (refused.accepted, "needs 3 devices, and 2 answer" in refused.detail) == (False, True)
        reply = await order(bus, "1,2,1")
        assert reply.accepted and reply.change == 1
        await until(lambda: planner.counted("spotwise_planner_reshapes_total", outcome="done") == 1)
        assert planner.counted("spotwise_planner_last_reshape_seconds") > 0
    assert [drain.worker_id for drain in devices.drains] == ["mixed-0"]
    assert devices.drains[0].devices_stay
    plan = await store.get_plan()
    assert plan is not None and plan.deployment is not None
    assert plan.deployment.stage in (ReshapeStage.MOVING, ReshapeStage.DONE)
    (journal,) = find_journals(tmp_path)
    done = replay(journal)
    assert done.difference is None
    assert {"ReshapeRequested", "DeviceSurveyed"} <= set(done.decision_s)


async def test_a_planner_without_the_lease_does_not_answer() -> None:
    broker, store = MemoryBroker(), MemoryStore()
    await store.hold_term(subjects.PLANNER, "another/1", 1, 60.0)
    bus = MemoryBus(broker)
    async with planning(broker, store):
        for _ in range(20):
            with pytest.raises(ReplyTimeoutError):
                await bus.request(subjects.RESHAPE, encode(m.ReshapeMesh(ParallelConfig(1, 1, 2))), 0.01)
