"""A group's hand-offs: over when every process's part is, whichever process fails, is late or is gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages import hand_offs as h
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget
from spotwise.mesh.ports.ports import HandoffHandler, KvTransferError, KvTransport, TransferReport
from spotwise.worker.groups.group_kv import GroupKvTransport

HANDOFF = KvHandoff("r", 1, 40, 5)
TARGET = KvTarget("t", 9, "t:1", (4, 5, 6))
SOURCE = KvSource("r", 1, (0, 1, 2), 40, 16)
SHARES = tuple(KvShare(f"d{n}", n, f"d:{n}", KvPart(0, 4, n, 1)) for n in (1, 2))


class OwnPush:
    """The leader's part, which ends when the test ends it."""

    def __init__(self) -> None:
        self.end: asyncio.Future[TransferReport] = asyncio.get_running_loop().create_future()
        self.calls: list[Any] = []
        self.has_sent = asyncio.Event()

    def wrote(self, layers: int, blocks: int) -> None:
        self.calls.append((layers, blocks))

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        self.calls.append((handoff, source_block_ids))

    async def caught_up(self) -> None:
        await self.has_sent.wait()

    def abort(self) -> None:
        if not self.end.done():
            self.end.set_exception(KvTransferError("called off"))

    async def delivered(self) -> TransferReport:
        return await self.end


class Bench:
    """A group of a leader and two devices, and what was ordered of them."""

    def __init__(self) -> None:
        self.orders: list[g.GroupOrder] = []
        self.handoffs: list[tuple[KvHandoff, TransferReport]] = []
        self.windows: dict[str, tuple[int, ...]] = {}
        self.own = OwnPush()
        self.device_shares = SHARES
        self.address = "l:1"
        self.kv = GroupKvTransport(
            self._opened,
            lambda address: KvShare("l", 7, address, KvPart(0, 4, 0, 1)),
            cast(Any, self),
            lambda handoff, report: self.handoffs.append((handoff, report)),
            num_layers=4,
        )

    def _opened(self, on_handoff: HandoffHandler) -> KvTransport:
        self.own_arrived = on_handoff
        return cast(KvTransport, self)

    def order(self, order: g.GroupOrder) -> None:
        self.orders.append(order)

    def move_kv_by(self, kv: Any) -> None:
        """As a group, it would report to `kv`; the test does."""

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        self.windows[choice_id] = block_ids

    def forget(self, choice_id: str) -> None:
        self.windows.pop(choice_id, None)

    def open_push(self, target: KvTarget, source: KvSource) -> OwnPush:
        assert (target, source) == (TARGET, SOURCE)
        return self.own

    def arrived(self, handoff: KvHandoff = HANDOFF) -> None:
        self.kv.reported(g.PartArrived(handoff, 100, 0.2, "shm"))

    def delivered(self) -> None:
        self.kv.reported(h.HandoffDelivered("r", 1, 100, 0.5, "tcp", 0.3))


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def soon() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_push_is_delivered_when_every_part_is(bench: Bench) -> None:
    """Devices are ordered what the leader does; the figures are those of all parts."""
    push = bench.kv.open_push(TARGET, SOURCE)
    push.wrote(2, 3)
    push.commit(HANDOFF, (0, 1, 2, 3))
    assert bench.own.calls == [(2, 3), (HANDOFF, (0, 1, 2, 3))]
    opened = h.OpenPush("r", 1, TARGET, (0, 1, 2), 40, 16)
    assert bench.orders == [opened, h.CommitPush(HANDOFF, (0, 1, 2, 3))]
    ending = asyncio.create_task(push.delivered())
    bench.delivered()
    bench.own.end.set_result(TransferReport(50, 0.9, "shm", 0.1))
    await soon()
    assert not ending.done()
    bench.delivered()
    assert await ending == TransferReport(250, 0.9, "shm, tcp", 0.3)
    bench.delivered()  # a repeated report of a push that is over


async def test_one_parts_failure_ends_the_others_and_is_the_reason(bench: Bench) -> None:
    """The source's blocks are free only when no process reads them any more."""
    push = bench.kv.open_push(TARGET, SOURCE)
    ending = asyncio.create_task(push.delivered())
    await soon()
    bench.kv.reported(h.HandoffFailed("r", 1, "the disk of d2 is on fire"))
    await soon()
    assert bench.orders[-1] == h.AbortPush("r", 1)
    assert not ending.done()
    bench.kv.reported(h.HandoffFailed("r", 1, "called off"))
    with pytest.raises(KvTransferError, match="on fire"):
        await ending


async def test_the_leaders_failure_ends_the_devices_parts(bench: Bench) -> None:
    """Also where one of them was delivered already."""
    push = bench.kv.open_push(TARGET, SOURCE)
    ending = asyncio.create_task(push.delivered())
    bench.delivered()
    bench.own.end.set_exception(KvTransferError("no connection"))
    await soon()
    assert bench.orders[-1] == h.AbortPush("r", 1)
    bench.kv.reported(h.HandoffFailed("r", 1, "called off"))
    with pytest.raises(KvTransferError, match="no connection"):
        await ending


async def test_a_lost_group_ends_its_pushes(bench: Bench) -> None:
    push = bench.kv.open_push(TARGET, SOURCE)
    ending = asyncio.create_task(push.delivered())
    waiting = asyncio.create_task(push.caught_up())
    bench.own.has_sent.set()
    await soon()
    bench.kv.lost("d1 is gone")
    with pytest.raises(KvTransferError, match=r"d1 is gone|called off"):
        await ending
    await waiting
    bench.delivered()


async def test_it_has_caught_up_when_every_part_has(bench: Bench) -> None:
    push = bench.kv.open_push(TARGET, SOURCE)
    waiting = asyncio.create_task(push.caught_up())
    bench.kv.reported(h.PushCaughtUp("r", 1))
    bench.own.has_sent.set()
    await soon()
    assert not waiting.done()
    bench.kv.reported(h.PushCaughtUp("r", 1))
    await waiting


async def test_an_aborted_push_is_called_off_everywhere(bench: Bench) -> None:
    """Once; it is over when the devices say so."""
    push = bench.kv.open_push(TARGET, SOURCE)
    ending = asyncio.create_task(push.delivered())
    await soon()
    push.abort()
    for _ in SHARES:
        bench.kv.reported(h.HandoffFailed("r", 1, "called off"))
    with pytest.raises(KvTransferError, match="called off"):
        await ending
    push.abort()
    assert bench.orders[-1] == h.AbortPush("r", 1)


async def test_a_hand_off_has_arrived_when_every_part_has(bench: Bench) -> None:
    """Whichever part is last; it is announced once, with the bytes of all."""
    bench.kv.expect("r", 1, (4, 5))
    assert bench.orders == [h.ExpectKv("r", 1, (4, 5))]
    assert bench.windows == {"r": (4, 5)}
    bench.arrived()
    bench.own_arrived(HANDOFF, TransferReport(50, 0.1, "tcp"))
    assert bench.handoffs == []
    bench.arrived()
    assert bench.handoffs == [(HANDOFF, TransferReport(250, 0.2, "shm, tcp"))]
    bench.arrived()
    assert len(bench.handoffs) == 1


async def test_parts_of_another_reservation_are_not_counted(bench: Bench) -> None:
    bench.kv.expect("r", 2, (4, 5))
    bench.arrived()
    bench.kv.forget("r")
    assert bench.orders[-1] == h.ForgetKv("r")
    assert bench.windows == {}
    later = KvHandoff("r", 2, 40, 5)
    for _ in range(2):
        bench.arrived(later)
    bench.own_arrived(later, TransferReport(50, 0.1, "tcp"))
    bench.kv.forget("r")
    assert bench.handoffs == []
    assert bench.orders.count(h.ForgetKv("r")) == 1


async def test_parts_of_two_hand_offs_do_not_make_one(bench: Bench) -> None:
    """A push that was given up, and the one after it, can fill different processes."""
    bench.kv.expect("r", 1, (4, 5))
    bench.arrived()
    bench.arrived(KvHandoff("r", 1, 41, 5, None, (6,)))
    bench.own_arrived(HANDOFF, TransferReport(50, 0.1, "tcp"))
    assert bench.handoffs == []


async def test_a_lost_group_expects_nothing(bench: Bench) -> None:
    """Its windows are closed; what arrives is dropped."""
    bench.kv.expect("r", 1, (4, 5))
    bench.kv.lost("d1 is gone")
    assert bench.windows == {}
    for _ in range(2):
        bench.arrived()
    bench.own_arrived(HANDOFF, TransferReport(50, 0.1, "tcp"))
    assert bench.handoffs == []


async def test_senders_learn_all_processes(bench: Bench) -> None:
    assert bench.kv.shares == (KvShare("l", 7, "l:1", KvPart(0, 4, 0, 1)), *SHARES)
