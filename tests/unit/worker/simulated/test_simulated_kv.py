"""Hand-offs by the clock, and memory that holds nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.requests.record import KvHandoff, KvSource, KvTarget
from spotwise.mesh.links.whole_push import WholePush
from spotwise.mesh.ports.ports import KvTransferError, TransferReport
from spotwise.worker.simulated.kv import NUM_LAYERS, NoKv, TimedKvTransport
from tests.fakes.memory import MemoryBroker, MemoryBus

HANDOFF = KvHandoff("r", epoch=1, num_tokens=20, first_token_id=5)
BLOCK_BYTES = 1000


class Peer:
    """One worker's transport, and the hand-offs that it was given."""

    def __init__(self, broker: MemoryBroker, name: str, incarnation: int, link: LinkCost) -> None:
        self.handoffs: list[KvHandoff] = []
        self.reports: list[TransferReport] = []
        self.refuses: Exception | None = None
        self.name = name
        self.incarnation = incarnation
        self.bus = MemoryBus(broker)
        self.transport = TimedKvTransport(
            self.bus, name, incarnation, self._took, link, BLOCK_BYTES, push_timeout_s=5.0
        )

    def _took(self, handoff: KvHandoff, report: TransferReport) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.handoffs.append(handoff)
        self.reports.append(report)

    def target(self) -> KvTarget:
        return KvTarget(self.name, self.incarnation, self.transport.address, (3, 4))


@asynccontextmanager
async def over(link: LinkCost) -> AsyncIterator[tuple[Peer, Peer]]:
    """A sender and a receiver over one broker, with links of this cost."""
    broker = MemoryBroker()
    pair = Peer(broker, "s", 3, link), Peer(broker, "t", 7, link)
    for peer in pair:
        await peer.transport.start()
    yield pair
    for peer in pair:
        await peer.transport.close()
        await peer.transport.close()
        await peer.bus.close()


@pytest.fixture
async def peers() -> AsyncIterator[tuple[Peer, Peer]]:
    async with over(LinkCost(latency_s=0.0, bytes_per_s=1e9)) as pair:
        yield pair


async def test_a_hand_off_arrives_with_its_report(peers: tuple[Peer, Peer]) -> None:
    """Both ends count the bytes that would have travelled; the window is used up."""
    sender, receiver = peers
    receiver.transport.expect("r", 1, (3, 4))
    report = await sender.transport.push(receiver.target(), HANDOFF, (0, 1))
    assert receiver.handoffs == [HANDOFF]
    assert (report.kv_bytes, receiver.reports[0].kv_bytes) == (2 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert report.transport == "simulated"
    with pytest.raises(KvTransferError, match=r"KV of r epoch 1 to t .* refused: no reservation"):
        await sender.transport.push(receiver.target(), HANDOFF, (0, 1))


async def test_what_the_real_inbox_refuses_is_refused(peers: tuple[Peer, Peer]) -> None:
    sender, receiver = peers
    receiver.transport.expect("r", 2, (3, 4))
    for target, handoff, reason in (
        (replace(receiver.target(), incarnation=6), replace(HANDOFF, epoch=2), "wrong incarnation"),
        (receiver.target(), HANDOFF, "stale epoch"),
        (receiver.target(), replace(HANDOFF, epoch=3), "no reservation"),
    ):
        with pytest.raises(KvTransferError, match=f"refused: {reason}"):
            await sender.transport.push(target, handoff, (0,))
    receiver.transport.forget("r")
    receiver.transport.forget("r")
    with pytest.raises(KvTransferError, match="no reservation"):
        await sender.transport.push(receiver.target(), replace(HANDOFF, epoch=2), (0,))
    assert receiver.handoffs == []


async def test_a_hand_off_without_a_receiver_is_refused(peers: tuple[Peer, Peer]) -> None:
    sender, receiver = peers
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    receiver.transport.expect("r", 1, (3, 4))
    receiver.refuses = RuntimeError("a bug")
    with pytest.raises(KvTransferError, match="refused: refused"):
        await sender.transport.push(receiver.target(), HANDOFF, (0, 1))
    assert reported == [receiver.refuses]


async def test_an_absent_worker_cannot_be_reached(peers: tuple[Peer, Peer]) -> None:
    """An unknown id, a member with real KV, one that has left: all are errors; and a closed transport pushes nothing."""
    sender, receiver = peers
    unknown = KvTarget("x", 1, "simulated:x", (3,))
    with pytest.raises(KvTransferError, match="has no subscriber"):
        await sender.transport.push(unknown, HANDOFF, (0,))
    with pytest.raises(KvTransferError, match="as a whole or not at all"):
        await sender.transport.push(KvTarget("x", 1, "host:9", (3,)), HANDOFF, (0,))
    await receiver.transport.close()
    with pytest.raises(KvTransferError, match="has no subscriber"):
        await sender.transport.push(receiver.target(), HANDOFF, (0,))
    await sender.transport.close()
    with pytest.raises(KvTransferError, match="closed"):
        await sender.transport.push(receiver.target(), HANDOFF, (0,))


async def test_blocks_must_fit_the_reservation(peers: tuple[Peer, Peer]) -> None:
    sender, receiver = peers
    for blocks in ((), (0, 1, 2)):
        with pytest.raises(ValueError, match="2 reserved"):
            await sender.transport.push(receiver.target(), HANDOFF, blocks)


async def test_pushes_share_the_senders_link() -> None:
    """Two at once take as long as the bytes of both; latency they do not share."""
    loop = asyncio.get_running_loop()
    async with over(LinkCost(latency_s=0.01, bytes_per_s=BLOCK_BYTES / 0.05)) as (sender, receiver):
        for name in ("a", "b"):
            receiver.transport.expect(name, 1, (3, 4))
        began_s = loop.time()
        await asyncio.gather(
            *(sender.transport.push(receiver.target(), replace(HANDOFF, choice_id=name), (0,)) for name in ("a", "b"))
        )
        assert loop.time() - began_s >= 0.1
        assert {handoff.choice_id for handoff in receiver.handoffs} == {"a", "b"}


async def test_a_push_that_takes_too_long_has_failed(peers: tuple[Peer, Peer]) -> None:
    """The request resumes on another worker."""
    slow = LinkCost(latency_s=5.0, bytes_per_s=1.0)
    hasty = TimedKvTransport(peers[0].bus, "s", 3, lambda *_: None, slow, BLOCK_BYTES, push_timeout_s=0.01)
    with pytest.raises(KvTransferError, match=r"not done within 0\.01 s"):
        await hasty.push(KvTarget("t", 7, "simulated:t", (3,)), HANDOFF, (0,))


class TestMoves:
    """Hand-offs of sequences that decode on: 20 of 21 blocks are written when the push is opened."""

    BLOCKS = tuple(range(21))

    @pytest.fixture
    async def push(self) -> AsyncIterator[WholePush]:
        """A push of such a sequence; a block takes 20 ms on the link."""
        async with over(LinkCost(latency_s=0.0, bytes_per_s=BLOCK_BYTES / 0.02)) as (sender, receiver):
            receiver.transport.expect("r", 1, self.BLOCKS)
            target = replace(receiver.target(), block_ids=self.BLOCKS)
            push = sender.transport.open_push(target, KvSource("r", 1, self.BLOCKS[:20], 40, 0))
            push.wrote(NUM_LAYERS, 20)
            yield push
            push.abort()

    async def test_its_commit_takes_as_long_as_the_blocks_since(self, push: WholePush) -> None:
        """The blocks of before take their time until `caught_up`; the report has the bytes of all."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await push.caught_up()
        copy_s = loop.time() - began_s
        push.commit(HANDOFF, self.BLOCKS)
        report = await push.delivered()
        assert report.visible_s is not None and report.visible_s < copy_s / 2
        assert report.kv_bytes == len(self.BLOCKS) * BLOCK_BYTES

    async def test_a_commit_during_the_copy_waits_for_it(self, push: WholePush) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        copying = asyncio.create_task(push.caught_up())
        await asyncio.sleep(0)
        push.commit(HANDOFF, self.BLOCKS)
        await push.delivered()
        whole_s = len(self.BLOCKS) * 0.02
        assert whole_s <= loop.time() - began_s < 1.8 * whole_s
        await copying

    async def test_a_prompts_blocks_take_their_time_after_its_commit(self, push: WholePush) -> None:
        """However long they have been written."""
        await asyncio.sleep(0.1)
        push.commit(HANDOFF, self.BLOCKS)
        report = await push.delivered()
        assert report.visible_s is not None and report.visible_s >= len(self.BLOCKS) * 0.02
        await push.caught_up()  # over: nothing is copied any more

    async def test_a_copy_ends_with_its_push(self, push: WholePush) -> None:
        """Aborted, it is waited for no longer."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        copying = asyncio.create_task(push.caught_up())
        await asyncio.sleep(0.01)
        push.abort()
        await copying
        assert loop.time() - began_s < 0.2
        with pytest.raises(KvTransferError, match="called off"):
            await push.delivered()

    async def test_a_copy_whose_waiter_is_cancelled_is_cancelled(self, push: WholePush) -> None:
        copying = asyncio.create_task(push.caught_up())
        await asyncio.sleep(0.01)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying


def test_memory_without_kv_has_its_size() -> None:
    memory = NoKv(block_bytes=64_000)
    assert memory.num_layers * memory.layer_block_bytes == 64_000
    data = memory.export_layers(4, 2, (9, 8, 7))
    assert data.dtype == np.uint8
    assert data.nbytes == 2 * 3 * memory.layer_block_bytes
    memory.import_layers(4, 2, (1, 2, 3), data)
    with pytest.raises(ValueError, match="are due"):
        memory.import_layers(4, 1, (1, 2, 3), data)
    assert memory.layout != NoKv(block_bytes=128_000).layout
    tiny = NoKv(block_bytes=3)
    assert tiny.layer_block_bytes == 1


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_push_can_be_called_off(is_committed: bool) -> None:
    async with over(LinkCost(latency_s=3600.0, bytes_per_s=1e9)) as (sender, receiver):
        receiver.transport.expect("r", 1, (3, 4))
        push = sender.transport.open_push(receiver.target(), KvSource("r", 1, (0,), 40, 0))
        delivered = asyncio.ensure_future(push.delivered())
        if is_committed:
            push.wrote(NUM_LAYERS, 1)
            push.commit(HANDOFF)
            await asyncio.sleep(0.01)
        push.abort()
        push.abort()
        with pytest.raises(KvTransferError, match=r"KV of r epoch 1 to t .*: called off"):
            await delivered
        assert receiver.handoffs == []
