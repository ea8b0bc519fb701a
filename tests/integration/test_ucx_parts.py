"""Hand-offs between workers of unequal shapes over real UCX: each process sends what it has to each that keeps it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import torch

from spotwise.core.parallel.model_partition import ModelDimensions, ModelShare
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget
from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.links.whole_push import all_or_none
from spotwise.mesh.ports.ports import KvPush, KvTransferError, TransferReport
from tests.contracts.waiting import until

pytestmark = pytest.mark.paired

DIMENSIONS = ModelDimensions(5, 12, 6, 64, 64, 768, 768, 768, head_layers=1.5)
GEOMETRY = KvGeometry(num_layers=5, kv_heads=6, key_dim=8, value_dim=6)
BLOCKS, BLOCK_SIZE = 12, 16
HANDOFF = KvHandoff("r", 1, 40, 5)
SOURCE, RESERVED = (7, 0, 3), (2, 9, 4, 11)
WAIT_S = 0.5


class Process:
    """One process of a worker: its part of the KV, and its transport."""

    def __init__(self, name: str, part: KvPart, seed: int, window_wait_s: float) -> None:
        cpu = torch.device("cpu")
        self.cache = PagedKvCache(GEOMETRY, BLOCKS, BLOCK_SIZE, torch.bfloat16, cpu, part=part)
        generator = torch.Generator().manual_seed(seed)
        for memory in (self.cache.keys, self.cache.values):
            memory.copy_(torch.randn(memory.shape, generator=generator))
        self.arrived: list[tuple[KvHandoff, TransferReport]] = []
        self.transport = UcxKvTransport(
            self.cache,
            name,
            len(name),
            lambda handoff, report: self.arrived.append((handoff, report)),
            TransferSettings(window_wait_s=window_wait_s, chunk_bytes=4096),
        )
        self.name = name
        self.part = part

    @property
    def share(self) -> KvShare:
        return KvShare(self.name, len(self.name), self.transport.address, self.part)


class Shaped:
    """A worker of P x M processes, all in this one."""

    def __init__(self, name: str, stages: int, shards: int, seed: int) -> None:
        places = [(stage, shard) for stage in range(stages) for shard in range(shards)]
        shares = [ModelShare(DIMENSIONS, stage, stages, shard, shards) for stage, shard in places]
        wait_s = WAIT_S if len(places) > 1 else 0.0
        self.name = name
        self.processes = [
            Process(f"{name}{index}", KvPart.of(share.layers, share.kv_heads), seed + index, wait_s)
            for index, share in enumerate(shares)
        ]

    @property
    def target(self) -> KvTarget:
        leader = self.processes[0].share
        shares = tuple(process.share for process in self.processes)
        return KvTarget(leader.member_id, leader.incarnation, leader.address, RESERVED, shares if shares[1:] else ())

    def expect(self, epoch: int = 1) -> None:
        for process in self.processes:
            process.transport.expect("r", epoch, RESERVED)

    def open(self, target: KvTarget, epoch: int = 1) -> list[KvPush]:
        source = KvSource("r", epoch, SOURCE, 40, 0)
        return [process.transport.open_push(target, source) for process in self.processes]

    def block(self, block: int) -> torch.Tensor:
        """All layers and heads of a block, `[layers, heads, ...]`, keys after values."""
        whole = torch.zeros(GEOMETRY.num_layers, GEOMETRY.kv_heads, BLOCK_SIZE * 14, dtype=torch.bfloat16)
        for process in self.processes:
            layers, heads = process.part.layers, process.part.kv_heads
            parts = [memory[:, :, block].flatten(2) for memory in (process.cache.keys, process.cache.values)]
            whole[layers.start : layers.stop, heads.start : heads.stop] = torch.cat(parts, 2)
        return whole


@contextlib.asynccontextmanager
async def running(*workers: Shaped) -> AsyncIterator[None]:
    processes = [process for worker in workers for process in worker.processes]
    for process in processes:
        await process.transport.start()
    try:
        yield
    finally:
        for process in processes:
            await process.transport.close()


async def whole(pushes: list[KvPush], worker: Shaped, handoff: KvHandoff = HANDOFF) -> list[TransferReport]:
    """Write and commit every process's push; return when all are delivered, or raise after all have ended."""
    for process, push in zip(worker.processes, pushes, strict=True):
        push.wrote(process.cache.num_layers, len(SOURCE))
        push.commit(handoff)

    def abort() -> None:
        for push in pushes:
            push.abort()

    return await all_or_none((push.delivered() for push in pushes), abort)


SHAPES = [(1, 1), (2, 3), (3, 2), (1, 6), (5, 1)]


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize("other", [(1, 1), (2, 3)], ids=str)
async def test_blocks_arrive_whole_whatever_the_shapes(shape: tuple[int, int], other: tuple[int, int]) -> None:
    """There and back: the reserved blocks have the sender's bytes, no others change, and each process hears of it once."""
    one, two = Shaped("a", *shape, seed=10), Shaped("bb", *other, seed=50)
    async with running(one, two):
        for sender, receiver in ((one, two), (two, one)):
            before = [receiver.block(block) for block in range(BLOCKS)]
            receiver.expect()
            reports = await whole(sender.open(receiver.target), sender)
            for there, here in zip(SOURCE, RESERVED, strict=False):
                assert torch.equal(receiver.block(here), sender.block(there))
                before[here] = sender.block(there)
            assert all(torch.equal(receiver.block(block), before[block]) for block in range(BLOCKS))
            kv_bytes = 3 * GEOMETRY.num_layers * GEOMETRY.kv_heads * BLOCK_SIZE * 14 * 2
            assert sum(report.kv_bytes for report in reports) == kv_bytes
            assert [[handoff for handoff, _ in process.arrived] for process in receiver.processes] == [
                [HANDOFF] for _ in receiver.processes
            ]
            assert sum(process.arrived[0][1].kv_bytes for process in receiver.processes) == kv_bytes
            for process in receiver.processes:
                process.arrived.clear()


async def test_layers_leave_as_each_process_writes_them() -> None:
    """The second stage's layers arrive before the first one's; nothing is read that was not reported."""
    one, two = Shaped("a", 2, 3, seed=10), Shaped("bb", 1, 1, seed=50)
    async with running(one, two):
        two.expect()
        pushes = one.open(two.target)
        last = one.processes[3:]
        for process, push in zip(last, pushes[3:], strict=True):
            push.wrote(1, len(SOURCE))
            assert process.part.layers.start == 3
        await until(lambda: torch.equal(two.block(RESERVED[0])[3], one.block(SOURCE[0])[3]))
        assert not torch.equal(two.block(RESERVED[0])[0], one.block(SOURCE[0])[0])
        assert not torch.equal(two.block(RESERVED[0])[4], one.block(SOURCE[0])[4])
        await whole(pushes, one)
        assert torch.equal(two.block(RESERVED[0]), one.block(SOURCE[0]))


async def test_bytes_that_come_before_the_order_wait_for_it() -> None:
    """One device of the target hears of the reservation last: its part is kept until then, and the hand-off is complete."""
    one, two = Shaped("a", 1, 1, seed=10), Shaped("bb", 1, 3, seed=50)
    async with running(one, two):
        for process in two.processes[:2]:
            process.transport.expect("r", 1, RESERVED)
        pushing = asyncio.create_task(whole(one.open(two.target), one))
        await until(lambda: all(process.arrived for process in two.processes[:2]))
        assert not pushing.done()
        two.processes[2].transport.expect("r", 1, RESERVED)
        await pushing
        assert torch.equal(two.block(RESERVED[1]), one.block(SOURCE[1]))


async def test_an_order_that_never_comes_fails_the_whole_push() -> None:
    """After a while; what is tried later under a new epoch is not disturbed by it."""
    one, two = Shaped("a", 1, 1, seed=10), Shaped("bb", 1, 2, seed=50)
    async with running(one, two):
        two.processes[0].transport.expect("r", 1, RESERVED)
        with pytest.raises(KvTransferError, match="no reservation"):
            await whole(one.open(two.target), one)
        assert two.processes[1].arrived == []
        two.expect(epoch=2)
        handoff = replace(HANDOFF, epoch=2)
        await whole(one.open(two.target, epoch=2), one, handoff)
        assert [process.arrived[-1][0] for process in two.processes] == [handoff] * 2


async def test_a_late_process_of_an_abandoned_push_fills_nothing() -> None:
    """Its reservation was closed and made again for another hand-off of the attempt: the parts of two do not make one."""
    one, two = Shaped("a", 1, 2, seed=10), Shaped("bb", 1, 1, seed=50)
    receiver = two.processes[0]
    async with running(one, two):
        two.expect()
        first, second = one.open(two.target)
        first.wrote(GEOMETRY.num_layers, len(SOURCE))
        first.commit(HANDOFF)
        await first.delivered()
        second.abort()
        with pytest.raises(KvTransferError, match="called off"):
            await second.delivered()
        longer = replace(HANDOFF, num_tokens=41)
        with pytest.raises(KvTransferError, match="refused"):
            await whole(one.open(two.target), one, longer)
        assert receiver.arrived == []
        two.expect()
        await whole(one.open(two.target), one, longer)
        assert [handoff for handoff, _ in receiver.arrived] == [longer]


async def test_a_lost_process_of_the_target_ends_the_push_everywhere() -> None:
    """The sender learns which; the others' parts may be written again."""
    one, two = Shaped("a", 2, 1, seed=10), Shaped("bb", 1, 3, seed=50)
    async with running(one, two):
        two.expect()
        target = two.target
        await two.processes[1].transport.close()
        with pytest.raises(KvTransferError, match="bb1"):
            await whole(one.open(target), one)
        assert two.processes[1].arrived == []
        await until(lambda: all(process.transport._inbox.arriving == 0 for process in two.processes))


async def test_a_target_that_keeps_nothing_of_it_is_an_error() -> None:
    """A table of parts that does not fit the model."""
    one, two = Shaped("a", 5, 1, seed=10), Shaped("bb", 1, 1, seed=50)
    async with running(one, two):
        shares = (replace(two.processes[0].share, part=KvPart.of(range(1), range(6))),)
        with pytest.raises(ValueError, match="keeps nothing"):
            one.processes[4].transport.open_push(replace(two.target, shares=shares), KvSource("r", 1, SOURCE, 40, 0))
