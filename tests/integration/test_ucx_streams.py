"""KV hand-offs that leave while they are written, over real UCX."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spotwise.core.requests.record import KvSource
from spotwise.mesh.links.kv_payloads import HostPayloads
from spotwise.mesh.ports.ports import KvPush, KvTransferError
from spotwise.wire.kv_frames import MAX_RESENDS
from tests.integration.ucx_worker import CELL_BYTES, LAYERS, ArrayMemory, Worker, handoff, pair, running, until

pytestmark = [pytest.mark.mesh, pytest.mark.paired]

SOURCE, RESERVED = (40, 3, 17, 9, 22), (5, 4, 60, 11, 30, 31, 32)


def held_back(worker: Worker, blocks: tuple[int, ...]) -> NDArray[np.uint8]:
    """Take the KV of these blocks away, as if it was not computed yet, and return it."""
    final = worker.memory.cells[:, blocks].copy()
    worker.memory.cells[:, blocks] = 0
    return final


class Damage(HostPayloads):
    """Payloads whose first checksums, as many as configured, are wrong: the receiver finds the bytes damaged."""

    def __init__(self, times: int) -> None:
        self.times = times

    def checksum(self, payload: NDArray[np.uint8]) -> int:
        self.times -= 1
        return super().checksum(payload) ^ (self.times >= 0)


@pytest.mark.parametrize("stream_bytes", [0, 4 * CELL_BYTES])
async def test_layers_arrive_while_later_ones_are_computed(stream_bytes: int) -> None:
    """A layer's KV arrives before the next layer is computed; a chunk that is too small waits for the next."""
    async with pair(RESERVED, stream_bytes=stream_bytes) as (sender, receiver):
        final = held_back(sender, SOURCE)
        push = sender.transport.open_push(receiver.target(RESERVED), KvSource("r", 1, SOURCE, 40, 0))
        for layer in range(LAYERS):
            sender.memory.cells[layer, SOURCE] = final[layer]
            push.wrote(layer + 1, 5)

            def arrived(layer: int = layer) -> bool:
                return np.array_equal(receiver.memory.cells[layer, RESERVED[:5]], final[layer])

            await until(arrived)
        assert receiver.handoffs == []
        push.commit(handoff())
        report = await push.delivered()
    assert receiver.handoffs == [handoff()]
    assert np.array_equal(receiver.memory.cells[:, RESERVED[:5]], final)
    assert report.kv_bytes == receiver.reports[0].kv_bytes == LAYERS * 5 * CELL_BYTES


async def test_a_prompt_in_parts_leaves_in_parts() -> None:
    """Blocks that the first part filled arrive while the second is computed; cached ones before anything is."""
    async with pair(RESERVED) as (sender, receiver):
        final = held_back(sender, SOURCE[1:])
        push = sender.transport.open_push(receiver.target(RESERVED), KvSource("r", 1, SOURCE, 40, 0))
        push.wrote(LAYERS, 1)
        await until(lambda: np.array_equal(receiver.memory.cells[:, 5], sender.memory.cells[:, 40]))
        sender.memory.cells[:, SOURCE[1:3]] = final[:, :2]
        push.wrote(LAYERS, 3)
        await until(lambda: np.array_equal(receiver.memory.cells[:, (4, 60)], final[:, :2]))
        sender.memory.cells[:, SOURCE[3:]] = final[:, 2:]
        push.wrote(LAYERS, 5)
        push.commit(handoff())
        await push.delivered()
    assert np.array_equal(receiver.memory.cells[:, RESERVED[:5]], sender.memory.cells[:, SOURCE])


async def test_waiting_for_the_engine_takes_no_time() -> None:
    """A prompt may be computed for longer than a push may take; what counts begins with the commit."""
    gate = threading.Event()
    async with pair(RESERVED, gate, push_timeout_s=0.3) as (sender, receiver):
        gate.set()
        push = sender.transport.open_push(receiver.target(RESERVED), KvSource("r", 1, SOURCE, 40, 0))
        push.wrote(LAYERS - 1, 5)
        await asyncio.sleep(0.7)
        gate.clear()
        push.wrote(LAYERS, 5)
        push.commit(handoff())
        with pytest.raises(KvTransferError, match=r"not done within 0\.3 s"):
            await push.delivered()


async def test_a_push_that_is_called_off_reads_no_more_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled push ends after the copy under way; then its blocks may be reused, and the window is free."""
    copying, go_on = threading.Event(), threading.Event()
    export = ArrayMemory.export_layers

    def slow(*args: Any, **named: Any) -> NDArray[np.uint8]:
        copying.set()
        assert go_on.wait(30)
        return export(*args, **named)

    monkeypatch.setattr(ArrayMemory, "export_layers", slow)
    async with pair(RESERVED, chunk_bytes=CELL_BYTES) as (sender, receiver):
        push = sender.transport.open_push(receiver.target(RESERVED), KvSource("r", 1, SOURCE, 40, 0))
        push.wrote(LAYERS, 5)
        ending = asyncio.create_task(push.delivered())
        await until(copying.is_set)
        push.abort()
        await asyncio.sleep(0.05)
        assert not ending.done()
        go_on.set()
        with pytest.raises(KvTransferError, match="called off"):
            await ending
        await sender.transport.push(receiver.target(RESERVED), handoff(), (1, 2))
    assert receiver.handoffs == [handoff()]
    assert np.array_equal(receiver.memory.cells[:, (5, 4)], sender.memory.cells[:, (1, 2)])


async def test_a_reservation_that_ends_ends_the_push() -> None:
    """Refused with the chunk that comes next, or at once where one came before."""
    async with pair(RESERVED, stream_bytes=0) as (sender, receiver):
        push = sender.transport.open_push(receiver.target(RESERVED), KvSource("r", 1, SOURCE, 40, 0))
        push.wrote(1, 5)
        await until(lambda: np.array_equal(receiver.memory.cells[0, RESERVED[:5]], sender.memory.cells[0, SOURCE]))
        receiver.transport.forget("r")
        with pytest.raises(KvTransferError, match="no reservation"):
            await push.delivered()
    assert receiver.handoffs == []


@pytest.mark.parametrize("damaged", [1, MAX_RESENDS])
async def test_a_damaged_chunk_is_sent_again(damaged: int) -> None:
    async with pair(RESERVED, chunk_bytes=2 * CELL_BYTES, payloads=Damage(damaged)) as (sender, receiver):
        report = await sender.transport.push(receiver.target(RESERVED), handoff(), SOURCE)
    assert np.array_equal(receiver.memory.cells[:, RESERVED[:5]], sender.memory.cells[:, SOURCE])
    assert receiver.handoffs == [handoff()]
    assert report.kv_bytes == receiver.reports[0].kv_bytes == LAYERS * 5 * CELL_BYTES


async def test_a_link_that_damages_everything_is_given_up() -> None:
    payloads = Damage(1000)
    async with pair(RESERVED, payloads=payloads) as (sender, receiver):
        before = receiver.memory.cells.copy()
        with pytest.raises(KvTransferError, match="arrived damaged"):
            await sender.transport.push(receiver.target(RESERVED), handoff(), SOURCE)
        assert np.array_equal(receiver.memory.cells, before)
        payloads.times = 0
        await sender.transport.push(receiver.target(RESERVED), handoff(), SOURCE)
    assert receiver.handoffs == [handoff()]


@pytest.mark.parametrize("exported_bytes", [1, 64 * 2**20])
async def test_many_prompts_that_are_computed_together_share_a_link(exported_bytes: int) -> None:
    """Sixteen pushes each way, layer by layer in any order of the pushes; also where one chunk may be copied out at a time."""
    options: dict[str, Any] = {
        "chunk_bytes": 4 * CELL_BYTES,
        "stream_bytes": CELL_BYTES,
        "exported_bytes": exported_bytes,
    }
    left, right = Worker("l", 1, **options), Worker("r", 2, **options)
    rng = random.Random(1)
    finals = {worker.name: held_back(worker, tuple(range(32))) for worker in (left, right)}
    async with running(left, right):
        open_pushes: list[tuple[Worker, int, KvPush]] = []
        for n in range(16):
            blocks, reserved = (2 * n, 2 * n + 1), (32 + 2 * n, 33 + 2 * n)
            for sender, receiver in ((left, right), (right, left)):
                receiver.transport.expect(f"{sender.name}{n}", 1, reserved)
                push = sender.transport.open_push(
                    receiver.target(reserved), KvSource(f"{sender.name}{n}", 1, blocks, 40, 0)
                )
                open_pushes.append((sender, n, push))
        for layer in range(LAYERS):
            for sender, n, push in rng.sample(open_pushes, len(open_pushes)):
                blocks = (2 * n, 2 * n + 1)
                sender.memory.cells[layer, blocks] = finals[sender.name][layer, blocks]
                push.wrote(layer + 1, 2)
                await asyncio.sleep(0)
        for sender, n, push in open_pushes:
            push.commit(handoff(f"{sender.name}{n}"))
        await asyncio.gather(*(push.delivered() for _, _, push in open_pushes))
        assert len(left.transport._links._by_address) == len(right.transport._links._by_address) == 1
    assert np.array_equal(right.memory.cells[:, 32:], finals["l"])
    assert np.array_equal(left.memory.cells[:, 32:], finals["r"])
    assert sorted(taken.choice_id for taken in right.handoffs) == sorted(f"l{n}" for n in range(16))
