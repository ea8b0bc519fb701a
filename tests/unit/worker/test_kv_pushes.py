"""The hand-offs that leave a worker, and its engine's reports to them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.messages import hand_offs as h
from spotwise.core.messages.hand_offs import PushMode
from spotwise.core.requests.record import KvHandoff, KvSource, KvTarget
from spotwise.core.worker import commands as c
from spotwise.mesh.ports.ports import KvTransferError, KvTransport, TransferReport
from spotwise.worker.kv_transfers import KvPushes
from tests.contracts.waiting import until

LAYERS, BLOCK_SIZE = 4, 16
TARGET = KvTarget("t", 7, "t:2", (4, 5, 6, 7))
#: 40 tokens are two whole blocks and a half.
HANDOFF = KvHandoff("r", 1, 40, 5)
OPEN = h.OpenPush("r", 1, TARGET, (0, 1, 2), num_tokens=40, written_tokens=16)


class HeldPush:
    """A push that ends when the test ends it."""

    def __init__(self) -> None:
        self.wrote_calls: list[tuple[int, int]] = []
        self.committed: list[KvHandoff] = []
        self.aborts = 0
        self.grown_to: tuple[int, ...] = ()
        self.has_sent = asyncio.Event()
        self.end: asyncio.Future[TransferReport] = asyncio.get_running_loop().create_future()

    def wrote(self, layers: int, blocks: int) -> None:
        self.wrote_calls.append((layers, blocks))

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        self.committed.append(handoff)
        self.grown_to = source_block_ids

    async def caught_up(self) -> None:
        await self.has_sent.wait()

    def abort(self) -> None:
        self.aborts += 1

    async def delivered(self) -> TransferReport:
        return await self.end


class Outbox:
    """A transport of held pushes, and the events that the role received."""

    def __init__(self) -> None:
        self.opened: list[HeldPush] = []
        self.events: list[c.WorkerEvent] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.pushes = KvPushes(cast(KvTransport, self), LAYERS, BLOCK_SIZE, self._spawn, self.events.append)

    def open_push(self, target: KvTarget, source: KvSource) -> HeldPush:
        if len(source.block_ids) > len(target.block_ids):
            raise ValueError("too many blocks")
        self.opened.append(HeldPush())
        return self.opened[-1]

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.add(asyncio.create_task(work, name=name))

    async def deliver(self, report: TransferReport) -> None:
        self.opened[-1].end.set_result(report)
        await asyncio.gather(*self.tasks)


@pytest.fixture
async def outbox() -> Outbox:
    return Outbox()


def batch(first: int, tokens: int, sequence_id: str = "r@1") -> Batch:
    return Batch((BatchRow("other@1", 0, 3, (9,)), BatchRow(sequence_id, first, tokens, (0, 1, 2))))


async def test_a_computed_prompt_is_written_and_committed_at_once(outbox: Outbox) -> None:
    """All its blocks in all layers; the engine makes no report of it."""
    outbox.pushes.push(c.PushKv(HANDOFF, TARGET, (0, 1, 2)))
    (push,) = outbox.opened
    assert (push.wrote_calls, push.committed) == ([(LAYERS, 3)], [HANDOFF])
    await outbox.deliver(TransferReport(4096, 0.5, "shm", 0.5))
    measured, delivered = outbox.events
    assert isinstance(measured, c.PushesMeasured)
    assert measured.costs.serial is not None and measured.costs.layerwise is None
    assert delivered == h.HandoffDelivered("r", 1, 4096, 0.5, "shm", 0.5, PushMode.SERIAL)


async def test_blocks_that_exist_already_leave_at_once(outbox: Outbox) -> None:
    """A prompt that begins with a cached block."""
    outbox.pushes.open(OPEN)
    assert outbox.opened[0].wrote_calls == [(LAYERS, 1)]
    assert outbox.opened[0].committed == []


async def test_an_iteration_reports_its_layers_in_whole_blocks(outbox: Outbox) -> None:
    """A block that the next part still writes is held back; the last part brings it."""
    outbox.pushes.open(OPEN)
    push = outbox.opened[0]
    push.wrote_calls.clear()
    watch = outbox.pushes.watch(batch(16, 23))
    assert watch is not None
    watch.layers_written(1)
    await until(lambda: push.wrote_calls)
    assert push.wrote_calls == [(1, 2)]
    outbox.pushes.watched(watch)
    assert push.wrote_calls[-1] == (LAYERS, 2)
    last = outbox.pushes.watch(batch(39, 1))
    assert last is not None
    outbox.pushes.watched(last)
    assert push.wrote_calls[-1] == (LAYERS, 3)


async def test_layers_that_the_loop_has_not_looked_at_wake_it_once(outbox: Outbox) -> None:
    outbox.pushes.open(OPEN)
    push = outbox.opened[0]
    push.wrote_calls.clear()
    watch = outbox.pushes.watch(batch(16, 24))
    assert watch is not None
    for layers in (1, 2, 3):
        watch.layers_written(layers)
    await until(lambda: push.wrote_calls)
    watch.layers_written(4)
    await until(lambda: len(push.wrote_calls) > 1)
    assert push.wrote_calls == [(3, 3), (4, 3)]


async def test_an_iteration_without_a_push_reports_nothing(outbox: Outbox) -> None:
    """The engine then has no listener; nor for a push that is over."""
    outbox.pushes.open(OPEN)
    assert outbox.pushes.watch(batch(0, 24, "another@1")) is None
    outbox.opened[0].end.set_exception(KvTransferError("connection lost"))
    await asyncio.gather(*outbox.tasks)
    assert outbox.pushes.watch(batch(0, 24)) is None
    assert outbox.events == [h.HandoffFailed("r", 1, "connection lost")]


async def test_a_prompt_is_committed_or_called_off(outbox: Outbox) -> None:
    outbox.pushes.open(OPEN)
    outbox.pushes.commit(h.CommitPush(HANDOFF))
    outbox.pushes.abort(h.AbortPush("r", 1))
    push = outbox.opened[0]
    assert (push.committed, push.aborts) == ([HANDOFF], 1)
    push.end.set_exception(KvTransferError("called off"))
    await asyncio.gather(*outbox.tasks)
    outbox.pushes.commit(h.CommitPush(HANDOFF))
    outbox.pushes.abort(h.AbortPush("r", 1))
    assert (push.committed, push.aborts) == ([HANDOFF], 1)


async def test_costs_are_noted_by_peer_and_way(outbox: Outbox) -> None:
    outbox.pushes.push(c.PushKv(HANDOFF, TARGET, (0, 1, 2)))
    await outbox.deliver(TransferReport(1000, 0.5, "shm", 0.4))
    outbox.tasks.clear()
    outbox.pushes.open(OPEN)
    watch = outbox.pushes.watch(batch(16, 24))
    assert watch is not None
    watch.layers_written(1)
    outbox.pushes.watched(watch)
    await outbox.deliver(TransferReport(1000, 0.5, "shm", 0.1))
    costs = [event.costs for event in outbox.events if isinstance(event, c.PushesMeasured)][-1]
    assert costs.serial is not None and costs.layerwise is not None
    assert costs.serial.transfer_s(2000) == pytest.approx(0.8)
    assert costs.layerwise.transfer_s(2000) == pytest.approx(0.2)
    assert costs.notices_s > 0.0
    assert isinstance(outbox.events[-1], h.HandoffDelivered) and outbox.events[-1].mode is PushMode.LAYERWISE


async def test_a_push_that_cannot_be_is_a_failed_hand_off(outbox: Outbox) -> None:
    """The failure is reported after the event that caused the push has been handled."""
    outbox.pushes.push(c.PushKv(HANDOFF, KvTarget("t", 7, "t:2", (4,)), (0, 1, 2)))
    assert outbox.events == []
    await until(lambda: outbox.events)
    assert outbox.events == [h.HandoffFailed("r", 1, "too many blocks")]


async def test_a_sequence_that_decodes_on_is_copied_as_far_as_it_is_written() -> None:
    """Its full blocks leave, the role is told when they have, and the commit brings the other blocks."""
    outbox = Outbox()
    outbox.pushes.open(h.OpenPush("r", 1, TARGET, (0, 1, 2), num_tokens=None, written_tokens=40))
    (push,) = outbox.opened
    assert push.wrote_calls == [(LAYERS, 2)]
    assert outbox.pushes.watch(Batch((BatchRow("r@1", 40, 1, (0, 1, 2)),))) is None
    push.has_sent.set()
    await until(lambda: outbox.events == [h.PushCaughtUp("r", 1)])
    outbox.pushes.commit(h.CommitPush(HANDOFF, (0, 1, 2, 3)))
    assert (push.committed, push.grown_to) == ([HANDOFF], (0, 1, 2, 3))
    push.end.set_result(TransferReport(4096, 0.5, "shm", 0.1))
    await until(lambda: len(outbox.events) == 2)
    assert isinstance(outbox.events[1], h.HandoffDelivered)  # and no cost of hand-offs was measured by it
