"""KV hand-offs of simulated workers: timed, or of real bytes without meaning. A timed hand-off takes its link's cost, plus one
message each way over the bus: COMMIT, answered by ACK or NACK for the reasons of `ucx_inbox`. A worker's pushes share its
link in turn. The blocks that are pre-copied for a move take their time before its COMMIT, those of a prompt's hand-off after
it. Real bytes go over UCX, with `NoKv` as the memory.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import numpy as np
from numpy.typing import NDArray

from spotwise.core.costs.cost_model import LinkCost
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvHandoff, KvShare, KvSource, KvTarget
from spotwise.mesh.links.whole_push import WholePush, push_at_once, source_of
from spotwise.mesh.ports.ports import (
    BusMessage,
    HandoffHandler,
    KvTransferError,
    MeshError,
    MessageBus,
    Subscription,
    TransferReport,
)
from spotwise.mesh.ports.weights import WholeKv
from spotwise.wire import subjects
from spotwise.wire.framing import FrameError
from spotwise.wire.kv_frames import (
    FRAME_BYTES,
    FrameKind,
    KvFrame,
    NackReason,
    decode_frame,
    decode_handoff,
    encode_frame,
    encode_handoff,
)

_SCHEME = "simulated:"
_TRANSPORT = "simulated"
#: As many layers as a large model has, so that real pushes are cut into chunks as its would be.
NUM_LAYERS = 32
_WHOLE = KvPart.whole(NUM_LAYERS)


class NoKv(WholeKv):
    """A `KvMemory` that stores nothing: exports are made up, imports are dropped. `block_bytes`: of one block, all layers."""

    def __init__(self, block_bytes: int) -> None:
        self.num_layers = NUM_LAYERS
        self.layer_block_bytes = max(1, block_bytes // NUM_LAYERS)

    @property
    def layout(self) -> str:
        """Simulated blocks of one size may be exchanged."""
        return f"simulated {self.num_layers} x {self.layer_block_bytes}"

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the blocks' size in bytes, each of them the first block's number; `into` is used where given."""
        size = num_layers * len(block_ids) * self.layer_block_bytes
        payload = np.empty(size, dtype=np.uint8) if into is None else into
        payload.fill(block_ids[0] % 256 if block_ids else 0)
        return payload

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Drop the blocks; raises `ValueError` where the size of `data` differs."""
        size = num_layers * len(block_ids) * self.layer_block_bytes
        if data.nbytes != size:
            raise ValueError(f"{data.nbytes} bytes where {size} are due")


class TimedKvTransport:
    """A `KvTransport` that moves no bytes.

    Args:
        on_handoff: called on the loop, once per accepted attempt; where it raises, the sender is refused.
        link: seconds of a hand-off; at the simulation's speed.
        block_bytes: bytes of one block, all layers.
        push_timeout_s: a push takes no longer than this.
    """

    def __init__(
        self,
        bus: MessageBus,
        worker_id: str,
        incarnation: int,
        on_handoff: HandoffHandler,
        link: LinkCost,
        block_bytes: int,
        push_timeout_s: float,
    ) -> None:
        self._bus = bus
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._on_handoff = on_handoff
        self._link = link
        self._block_bytes = block_bytes
        self._push_timeout_s = push_timeout_s
        self._windows: dict[str, int] = {}
        self._push_ids = itertools.count(1)
        self._free_s = 0.0  # when the link is, on the monotonic clock
        self._subscription: Subscription | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """The scheme and this worker's id."""
        return f"{_SCHEME}{self._worker_id}"

    @property
    def refused_connections(self) -> int:
        """None: it has no port."""
        return 0

    @property
    def shares(self) -> tuple[KvShare, ...]:
        """None: its memory is never divided."""
        return ()

    async def start(self) -> None:
        """Subscribe to pushes."""
        self._subscription = await self._bus.subscribe(subjects.simulated_kv(self._worker_id), self._on_push)

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Accept this attempt's hand-off; replaces an earlier attempt's window."""
        self._windows[choice_id] = epoch

    def forget(self, choice_id: str) -> None:
        """Refuse further hand-offs of the choice. Idempotent."""
        self._windows.pop(choice_id, None)

    def open_push(self, target: KvTarget, source: KvSource) -> WholePush:
        """Begin a hand-off, timed from its commit, but for blocks that `caught_up` waits for; raises `ValueError` for no
        blocks, or more than the target reserved.
        """

        async def move(handoff: KvHandoff, block_ids: tuple[int, ...], copied_blocks: int) -> int:
            return await self._move(target, handoff, len(block_ids), copied_blocks)

        async def pre_copy(blocks: int) -> None:
            await self._take_time(blocks * self._block_bytes)

        return WholePush(target, source, NUM_LAYERS, _TRANSPORT, move, pre_copy)

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """Wait as long as the bytes take, then hand the request over; raises `KvTransferError`: unreachable, refused or timed
        out, and `ValueError` for no blocks, or more than the target reserved.
        """
        push = self.open_push(target, source_of(handoff, source_block_ids))
        return await push_at_once(push, NUM_LAYERS, len(source_block_ids), handoff)

    async def _move(self, target: KvTarget, handoff: KvHandoff, num_blocks: int, copied_blocks: int) -> int:
        payload = encode_handoff(handoff)
        frame = KvFrame(
            kind=FrameKind.COMMIT,
            choice_id=handoff.choice_id,
            epoch=handoff.epoch,
            push_id=next(self._push_ids),
            sender_incarnation=self._incarnation,
            target_incarnation=target.incarnation,
            part=_WHOLE,
            num_blocks=num_blocks,
            payload_bytes=len(payload),
        )
        try:
            async with asyncio.timeout(self._push_timeout_s):
                await self._take_time((num_blocks - copied_blocks) * self._block_bytes)
                answer = await self._request(target, encode_frame(frame) + payload)
        except TimeoutError:
            raise KvTransferError(f"not done within {self._push_timeout_s:g} s") from None
        except (MeshError, FrameError) as error:
            raise KvTransferError(str(error)) from None
        if answer.reason is not None:
            raise KvTransferError(f"refused: {answer.reason.name.lower().replace('_', ' ')}")
        return num_blocks * self._block_bytes

    async def close(self) -> None:
        """Unsubscribe; idempotent."""
        self._closed = True
        self._windows.clear()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def _take_time(self, kv_bytes: int) -> None:
        now_s = time.monotonic()
        begins_s = max(now_s, self._free_s)
        # A push's latency does not occupy the link.
        self._free_s = begins_s + kv_bytes / self._link.bytes_per_s
        await asyncio.sleep(begins_s - now_s + self._link.transfer_s(kv_bytes))

    async def _request(self, target: KvTarget, message: bytes) -> KvFrame:
        if self._closed:
            raise KvTransferError("this transport is closed")
        if target.address != f"{_SCHEME}{target.worker_id}":
            raise KvTransferError("it moves real KV; a mesh is simulated as a whole or not at all")
        reply = await self._bus.request(subjects.simulated_kv(target.worker_id), message, self._push_timeout_s)
        return decode_frame(reply)

    async def _on_push(self, message: BusMessage) -> None:
        frame = decode_frame(message.payload[:FRAME_BYTES])
        handoff = decode_handoff(frame, message.payload[FRAME_BYTES:])
        reason = self._take(frame, handoff)
        if message.respond is not None:
            answer = KvFrame(
                kind=FrameKind.ACK if reason is None else FrameKind.NACK,
                choice_id=frame.choice_id,
                epoch=frame.epoch,
                push_id=frame.push_id,
                sender_incarnation=self._incarnation,
                target_incarnation=frame.sender_incarnation,
                part=frame.part,
                reason=reason,
            )
            await message.respond(encode_frame(answer))

    def _take(self, frame: KvFrame, handoff: KvHandoff) -> NackReason | None:
        """Check a push against its window and announce it; return the reason to refuse it."""
        if frame.target_incarnation != self._incarnation:
            return NackReason.WRONG_INCARNATION
        epoch = self._windows.get(frame.choice_id)
        if epoch is None or frame.epoch > epoch:
            return NackReason.NO_RESERVATION
        if frame.epoch < epoch:
            return NackReason.STALE_EPOCH
        del self._windows[frame.choice_id]
        report = TransferReport(frame.num_blocks * self._block_bytes, 0.0, _TRANSPORT)
        try:
            self._on_handoff(handoff, report)
        except Exception as error:
            # As in `ucx_inbox`: whatever the handler raises, the sender must receive an answer.
            context = {"message": "a hand-off was not taken", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return NackReason.REFUSED
        return None
