"""What every `KvTransport` keeps to: the same tests for UCX and for its in-memory twin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from spotwise.core.messages.numerics import Crossing
from spotwise.core.requests.record import KvHandoff, KvSource, KvTarget, QueueLevel
from spotwise.mesh.ports.ports import HandoffHandler, KvMemory, KvTransferError, KvTransport, TransferReport
from spotwise.mesh.ports.weights import WholeKv

LAYERS, BLOCKS, CELL_BYTES = 3, 16, 64
HANDOFF = KvHandoff("r", epoch=1, num_tokens=20, first_token_id=5, level=QueueLevel(3, 0.25))


class MakeTransport(Protocol):
    """Makes a transport, not started."""

    def __call__(
        self,
        memory: KvMemory,
        worker_id: str,
        incarnation: int,
        on_handoff: HandoffHandler,
        *,
        model_digest: str | None,
        numerics_class: str,
        crossing: Crossing,
    ) -> KvTransport:
        """Make that of a worker over its memory."""


class ArrayMemory(WholeKv):
    """Paged KV in one numpy array."""

    def __init__(self, seed: int, cell_bytes: int = CELL_BYTES, layout: str = "tiled") -> None:
        self.num_layers = LAYERS
        self.layout = layout
        self.layer_block_bytes = cell_bytes
        self.cells = np.random.default_rng(seed).integers(0, 256, (LAYERS, BLOCKS, cell_bytes), dtype=np.uint8)

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None
    ) -> NDArray[np.uint8]:
        """Copy blocks out."""
        return self.cells[first_layer : first_layer + num_layers, list(block_ids)].reshape(-1)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Copy blocks in."""
        cells = data.reshape(num_layers, len(block_ids), self.layer_block_bytes)
        self.cells[first_layer : first_layer + num_layers, list(block_ids)] = cells


class Peer:
    """One worker: a transport, its memory, and the hand-offs it was given."""

    def __init__(
        self,
        make: MakeTransport,
        name: str,
        incarnation: int,
        model_digest: str | None = None,
        numerics_class: str = "",
        crossing: Crossing = Crossing.COUNT,
        **memory: Any,
    ) -> None:
        self.memory = ArrayMemory(incarnation, **memory)
        self.handoffs: list[KvHandoff] = []
        self.reports: list[TransferReport] = []
        self.name = name
        self.incarnation = incarnation
        self.refuses: Exception | None = None
        options: dict[str, Any] = {"numerics_class": numerics_class, "crossing": crossing}
        self.transport = make(self.memory, name, incarnation, self._took, model_digest=model_digest, **options)

    def _took(self, handoff: KvHandoff, report: TransferReport) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.handoffs.append(handoff)
        self.reports.append(report)

    def target(self, *block_ids: int, **changes: Any) -> KvTarget:
        """A reservation of this worker."""
        fields = {"worker_id": self.name, "incarnation": self.incarnation, "address": self.transport.address}
        return KvTarget(**{**fields, "block_ids": block_ids, **changes})


class StartPeer(Protocol):
    """Starts a worker, which is closed when the test ends."""

    async def __call__(self, name: str, incarnation: int, **memory: Any) -> Peer:
        """Return it, listening, over a memory of this kind."""


async def a_pair(peer: StartPeer, *block_ids: int) -> tuple[Peer, Peer]:
    """Start a sender, and a receiver that expects the first attempt in these blocks."""
    sender, receiver = await peer("p", 1), await peer("t", 2)
    receiver.transport.expect("r", 1, block_ids)
    return sender, receiver


class KvTransportContract:
    """Subclasses have a fixture `make`: makes transports that reach one another."""

    @pytest.fixture
    async def peer(self, make: MakeTransport) -> AsyncIterator[StartPeer]:
        """Start workers of the contract."""
        peers: list[Peer] = []

        async def start(name: str, incarnation: int, **memory: Any) -> Peer:
            peers.append(Peer(make, name, incarnation, **memory))
            await peers[-1].transport.start()
            return peers[-1]

        yield start
        for each in peers:
            await each.transport.close()

    async def test_the_first_reserved_blocks_get_the_senders_bytes(self, peer: StartPeer) -> None:
        """The blocks are written in all layers and no others change, and both sides report the bytes."""
        sender, receiver = await peer("p", 1), await peer("t", 2)
        expected = receiver.memory.cells.copy()
        expected[:, (9, 2)] = sender.memory.cells[:, (4, 7)]
        receiver.transport.expect("r", 1, (9, 2, 5))
        report = await sender.transport.push(receiver.target(9, 2, 5), HANDOFF, (4, 7))
        assert np.array_equal(receiver.memory.cells, expected)
        assert receiver.handoffs == [HANDOFF]
        assert report.kv_bytes == receiver.reports[0].kv_bytes == LAYERS * 2 * CELL_BYTES
        assert report.transport == receiver.reports[0].transport

    @pytest.mark.parametrize(
        ("expected", "epoch", "changes", "reason"),
        [
            (("r", 2), 1, {}, "a later attempt"),
            (("r", 1), 2, {}, "no reservation"),
            (("other", 1), 1, {}, "no reservation"),
            (("r", 1), 1, {"incarnation": 99}, "has restarted"),
            (("r", 1), 1, {"worker_id": "another"}, "t answers at that address"),
        ],
    )
    async def test_a_push_nobody_waits_for_is_refused_and_writes_nothing(
        self, peer: StartPeer, expected: tuple[str, int], epoch: int, changes: dict[str, Any], reason: str
    ) -> None:
        """A push without a matching window is refused with its reason, writes nothing and leaves the window open."""
        sender, receiver = await peer("p", 1), await peer("t", 2)
        before = receiver.memory.cells.copy()
        receiver.transport.expect(*expected, (1, 2))
        stray = KvHandoff("r", epoch, 20, 5)
        with pytest.raises(KvTransferError, match=rf"KV of r epoch {epoch} to .*: .*{reason}"):
            await sender.transport.push(receiver.target(1, 2, **changes), stray, (1, 2))
        assert np.array_equal(receiver.memory.cells, before)
        await sender.transport.push(receiver.target(1, 2), KvHandoff(*expected, 20, 5), (1, 2))
        assert receiver.handoffs == [KvHandoff(*expected, 20, 5)]

    async def test_a_window_is_good_for_one_push(self, peer: StartPeer) -> None:
        sender, receiver = await a_pair(peer, 1, 2)
        await sender.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        after = receiver.memory.cells.copy()
        with pytest.raises(KvTransferError, match="no reservation"):
            await sender.transport.push(receiver.target(1, 2), HANDOFF, (3, 4))
        assert np.array_equal(receiver.memory.cells, after)
        assert receiver.handoffs == [HANDOFF]

    async def test_what_is_forgotten_while_it_is_pushed_is_refused(self, peer: StartPeer) -> None:
        """From `forget` on not a byte is written; forgetting again changes nothing."""
        sender, receiver = await a_pair(peer, 1, 2)
        before = receiver.memory.cells.copy()
        pushing = asyncio.create_task(sender.transport.push(receiver.target(1, 2), HANDOFF, (1, 2)))
        receiver.transport.forget("r")
        receiver.transport.forget("r")
        with pytest.raises(KvTransferError, match="no reservation"):
            await pushing
        assert np.array_equal(receiver.memory.cells, before)
        assert receiver.handoffs == []

    async def test_a_later_attempt_takes_the_window_over(self, peer: StartPeer) -> None:
        sender, receiver = await a_pair(peer, 1, 2)
        receiver.transport.expect("r", 2, (7, 8))
        with pytest.raises(KvTransferError, match="a later attempt"):
            await sender.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        await sender.transport.push(receiver.target(7, 8), KvHandoff("r", 2, 20, 5), (3, 4))
        assert np.array_equal(receiver.memory.cells[:, (7, 8)], sender.memory.cells[:, (3, 4)])

    async def test_a_worker_hands_over_to_itself(self, peer: StartPeer) -> None:
        """A worker's own address is a peer like any other."""
        worker = await peer("m", 1)
        source = worker.memory.cells[:, (0, 1)].copy()
        worker.transport.expect("r", 1, (8, 9))
        await worker.transport.push(worker.target(8, 9), HANDOFF, (0, 1))
        assert np.array_equal(worker.memory.cells[:, (8, 9)], source)

    async def test_workers_of_different_shape_do_not_hand_over(self, peer: StartPeer) -> None:
        sender, receiver = await peer("p", 1), await peer("t", 2, cell_bytes=2 * CELL_BYTES)
        receiver.transport.expect("r", 1, (1, 2))
        with pytest.raises(KvTransferError, match="do not fit"):
            await sender.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        same = await peer("s", 3)
        same.transport.expect("r", 1, (1,))
        with pytest.raises(KvTransferError, match="do not fit"):
            await sender.transport.push(same.target(1, 2), HANDOFF, (1, 2))
        assert receiver.handoffs == same.handoffs == []

    async def test_workers_that_read_bytes_differently_do_not_hand_over(self, peer: StartPeer) -> None:
        """Blocks of one size in two orders: both workers are named, nothing is written, and a worker that is alike may push."""
        sender, receiver = await peer("p", 1), await peer("t", 2, layout="plain")
        before = receiver.memory.cells.copy()
        receiver.transport.expect("r", 1, (1, 2))
        for _ in range(2):
            with pytest.raises(KvTransferError, match=r"to t at .*: p and t keep KV in different layouts; give"):
                await sender.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        assert np.array_equal(receiver.memory.cells, before)
        alike = await peer("q", 3, layout="plain")
        await alike.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        assert receiver.handoffs == [HANDOFF]

    async def test_workers_with_other_weights_do_not_hand_over(self, peer: StartPeer) -> None:
        """KV of one model is noise to another: both are named with their digests, and a worker that is alike may push."""
        sender, receiver = await peer("p", 1, model_digest="0a"), await peer("t", 2, model_digest="0b")
        before = receiver.memory.cells.copy()
        receiver.transport.expect("r", 1, (1, 2))
        for weights, described in ((sender, r"p \(0a\)"), (await peer("s", 4), r"s \(none\)")):
            with pytest.raises(KvTransferError, match=rf"t computes with other weights \(0b\) than {described}; give"):
                await weights.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        assert np.array_equal(receiver.memory.cells, before)
        alike = await peer("q", 3, model_digest="0b")
        await alike.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        assert receiver.handoffs == [HANDOFF]

    async def test_workers_of_other_classes_hand_over_only_where_that_is_counted(self, peer: StartPeer) -> None:
        """The receiver's policy decides, or the sender's, whose error names both classes."""
        refusing = await peer("s", 5, numerics_class="bfloat16/dot/1", crossing=Crossing.REFUSE)
        counting = await peer("p", 1, numerics_class="bfloat16/dot/1")
        receiver = await peer("t", 2, numerics_class="bfloat16/amx/1", crossing=Crossing.REFUSE)
        before = receiver.memory.cells.copy()
        receiver.transport.expect("r", 1, (1, 2))
        with pytest.raises(KvTransferError, match=r"bfloat16/amx/1, s in bfloat16/dot/1, and SPOTWISE_CROSSING=refuse"):
            await refusing.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        with pytest.raises(KvTransferError):
            await counting.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        assert np.array_equal(receiver.memory.cells, before)
        alike = await peer("q", 3, numerics_class="bfloat16/amx/1", crossing=Crossing.REFUSE)
        await alike.transport.push(receiver.target(1, 2), HANDOFF, (1, 2))
        other = await peer("u", 4, numerics_class="bfloat16/amx/1")
        other.transport.expect("r", 1, (1, 2))
        await counting.transport.push(other.target(1, 2), HANDOFF, (1, 2))
        assert receiver.handoffs == other.handoffs == [HANDOFF]

    async def test_a_hand_off_that_is_not_taken_is_an_error_of_the_sender(self, peer: StartPeer) -> None:
        """Where on_handoff raises, the sender's push fails and the receiver's loop reports the error."""
        sender, receiver = await peer("p", 1), await peer("t", 2)
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        receiver.refuses = RuntimeError("no such sequence")
        receiver.transport.expect("r", 1, (1,))
        with pytest.raises(KvTransferError, match="could not take"):
            await sender.transport.push(receiver.target(1), HANDOFF, (1,))
        assert [context["exception"] for context in reported] == [receiver.refuses]

    async def test_a_hand_off_may_leave_as_it_is_written(self, peer: StartPeer) -> None:
        """Chunks may leave layer by layer and block by block; what arrives is the KV at the time it was reported as written."""
        sender, receiver = await a_pair(peer, 9, 2, 5)
        final = sender.memory.cells[:, (4, 7)].copy()
        sender.memory.cells[:, (4, 7)] = 0
        push = sender.transport.open_push(receiver.target(9, 2, 5), KvSource("r", 1, (4, 7), 40, 0))
        for blocks in (1, 2):
            for layers in range(1, LAYERS + 1):
                sender.memory.cells[:layers, (4, 7)[:blocks]] = final[:layers, :blocks]
                push.wrote(layers, blocks)
                await asyncio.sleep(0.005)
        push.commit(HANDOFF)
        report = await push.delivered()
        assert np.array_equal(receiver.memory.cells[:, (9, 2)], final)
        assert receiver.handoffs == [HANDOFF]
        assert report.kv_bytes == receiver.reports[0].kv_bytes == LAYERS * 2 * CELL_BYTES
        assert report.visible_s is not None and report.visible_s > 0.0
        assert receiver.reports[0].visible_s is None

    async def test_a_push_may_grow_until_its_commit(self, peer: StartPeer) -> None:
        """The blocks of a sequence that decodes on: the full ones leave at once, the others with the commit."""
        sender, receiver = await a_pair(peer, 9, 2, 5, 8)
        push = sender.transport.open_push(receiver.target(9, 2, 5, 8), KvSource("r", 1, (4, 7), 40, 0))
        push.wrote(LAYERS, 1)
        await push.caught_up()
        sender.memory.cells[:, (7, 3)] += 1
        handoff = replace(HANDOFF, later_token_ids=(6, 7, 2**32 - 1))
        push.commit(handoff, (4, 7, 3))
        report = await push.delivered()
        assert np.array_equal(receiver.memory.cells[:, (9, 2, 5)], sender.memory.cells[:, (4, 7, 3)])
        assert receiver.handoffs == [handoff]
        assert report.kv_bytes == LAYERS * 3 * CELL_BYTES

    @pytest.mark.parametrize("block_ids", [(4,), (7, 4, 3), (4, 7, 3, 2, 1)], ids=["fewer", "others", "too many"])
    async def test_a_push_grows_at_its_end_and_within_its_reservation(
        self, peer: StartPeer, block_ids: tuple[int, ...]
    ) -> None:
        """Anything else is the caller's mistake, and hands nothing over."""
        sender, receiver = await a_pair(peer, 9, 2, 5)
        push = sender.transport.open_push(receiver.target(9, 2, 5), KvSource("r", 1, (4, 7), 40, 0))
        with pytest.raises(ValueError, match="blocks"):
            push.commit(HANDOFF, block_ids)
        push.abort()
        with pytest.raises(KvTransferError):
            await push.delivered()
        assert receiver.handoffs == []

    async def test_what_is_not_all_written_is_not_committed(self, peer: StartPeer) -> None:
        sender, receiver = await a_pair(peer, 1, 2)
        push = sender.transport.open_push(receiver.target(1, 2), KvSource("r", 1, (4, 7), 40, 0))
        push.wrote(LAYERS - 1, 2)
        push.wrote(LAYERS, 1)
        with pytest.raises(ValueError, match="not all written"):
            push.commit(HANDOFF)
        push.wrote(LAYERS, 2)
        push.commit(HANDOFF)
        await push.delivered()
        assert receiver.handoffs == [HANDOFF]

    @pytest.mark.parametrize("layers", [0, LAYERS - 1])
    async def test_a_push_that_is_called_off_hands_nothing_over(self, peer: StartPeer, layers: int) -> None:
        """A push cancelled before its start or half-way hands nothing over, notifies its owner, and can be pushed again.

        Idempotent.
        """
        sender, receiver = await a_pair(peer, 1, 2)
        push = sender.transport.open_push(receiver.target(1, 2), KvSource("r", 1, (4, 7), 40, 0))
        if layers:
            push.wrote(layers, 2)
            await asyncio.sleep(0.02)
        push.abort()
        push.abort()
        with pytest.raises(KvTransferError, match=r"KV of r epoch 1 to t at .*: called off"):
            await push.delivered()
        push.wrote(LAYERS, 2)
        assert receiver.handoffs == []
        await sender.transport.push(receiver.target(1, 2), HANDOFF, (3, 4))
        assert np.array_equal(receiver.memory.cells[:, (1, 2)], sender.memory.cells[:, (3, 4)])
        push.abort()

    async def test_what_cannot_be_pushed_is_a_mistake_of_the_caller(self, peer: StartPeer) -> None:
        worker = await peer("p", 1)
        for target, source in ((worker.target(1), ()), (worker.target(1), (1, 2))):
            with pytest.raises(ValueError, match="reserved"):
                await worker.transport.push(target, HANDOFF, source)
            with pytest.raises(ValueError, match="reserved"):
                worker.transport.open_push(target, KvSource("r", 1, source, 40, 0))

    async def test_a_worker_that_left_cannot_be_reached(self, peer: StartPeer) -> None:
        """The error names its address; closing twice is closing; a closed transport pushes no more."""
        sender, receiver = await a_pair(peer, 1)
        target = receiver.target(1)
        await receiver.transport.close()
        await receiver.transport.close()
        with pytest.raises(KvTransferError, match=f"{target.address}: (no connection|cannot connect)"):
            await sender.transport.push(target, HANDOFF, (1,))
        with pytest.raises(KvTransferError, match="closed"):
            await receiver.transport.push(sender.target(1), HANDOFF, (1,))

    async def test_there_is_no_address_before_the_start(self, make: MakeTransport) -> None:
        """The address of a transport before its start raises an error that has the remedy; the transport closes cleanly."""
        unstarted = Peer(make, "n", 3).transport
        with pytest.raises(RuntimeError, match="start"):
            _ = unstarted.address
        await unstarted.close()
