"""Receives pushes into windows of reserved blocks. Only the push that owns a window writes its blocks, on copy threads, under
the window's lock; `forget` takes the lock, so that no block is written after it. A push is complete when every cell (a block
of a layer) has arrived once; its hand-off is then announced exactly once. A damaged chunk is requested again; a COMMIT
before it has arrived is answered at the next COMMIT. A refused push is answered once and its remaining frames are drained;
its window is free for the next push.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from spotwise.mesh.kv_arrivals import IncomingPush, KvWindow
from spotwise.mesh.ports import HandoffHandler, KvMemory, KvTransferError, PayloadMemory, TransferReport
from spotwise.mesh.ucx_link import UcxLink
from spotwise.wire.kv_frames import (
    CHUNK_BYTES,
    MAX_HANDOFF_BYTES,
    MAX_RESENDS,
    FrameKind,
    KvFrame,
    KvFrameError,
    NackReason,
    decode_handoff,
)

#: Far above the sequences of any worker; each costs memory until its COMMIT or ABORT.
_MAX_PUSHES_OF_A_LINK = 4096


class KvInbox:
    """Receives pushes into reserved blocks."""

    def __init__(
        self,
        memory: KvMemory,
        payloads: PayloadMemory,
        incarnation: int,
        on_handoff: HandoffHandler,
        copies: Executor,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._memory = memory
        self._payloads = payloads
        self._incarnation = incarnation
        self._on_handoff = on_handoff
        self._copies = copies
        self._most_chunk_bytes = max(CHUNK_BYTES, chunk_bytes, memory.layer_block_bytes)
        self._windows: dict[str, KvWindow] = {}
        self._incoming: dict[tuple[UcxLink, int], IncomingPush] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def arriving(self) -> int:
        """Pushes under way."""
        return len(self._incoming)

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Open a window; replaces the choice's earlier one."""
        self.forget(choice_id)
        self._windows[choice_id] = KvWindow(epoch, block_ids)

    def forget(self, choice_id: str) -> None:
        """Close a window: after this call, no copy writes its blocks. Idempotent."""
        window = self._windows.pop(choice_id, None)
        if window is None:
            return
        if window.owner is not None:
            self._refuse(window.owner, NackReason.NO_RESERVATION)
        # A scatter under way ends; those queued behind it find the window without an owner and write nothing.
        with window.lock:
            pass

    def admitted_bytes(self, frame: KvFrame) -> int:
        """Return the largest payload that a header may announce, by its kind and shape; at most a chunk's."""
        if frame.kind is FrameKind.COMMIT:
            return MAX_HANDOFF_BYTES
        if frame.kind is not FrameKind.CHUNK:
            return 0
        claimed_bytes = frame.num_layers * frame.num_blocks * self._memory.layer_block_bytes
        return min(claimed_bytes, self._most_chunk_bytes)

    def receive(
        self, link: UcxLink, frame: KvFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> asyncio.Task[None] | None:
        """Handle a CHUNK, COMMIT or ABORT whose payload is still arriving; the task ends when its buffer is free again."""
        key = (link, frame.push_id)
        if frame.kind is FrameKind.ABORT:
            self._give_up(key)
            return None
        incoming = self._incoming.get(key)
        if incoming is None:
            if sum(known is link for known, _ in self._incoming) >= _MAX_PUSHES_OF_A_LINK:
                raise KvFrameError(f"more than {_MAX_PUSHES_OF_A_LINK} pushes at once")
            incoming = self._incoming[key] = IncomingPush(link, frame)
        if not incoming.over and (reason := self._claim(incoming, frame)) is not None:
            self._refuse(incoming, reason)
        if frame.kind is FrameKind.CHUNK:
            task = asyncio.create_task(self._chunk(incoming, frame, payload, arrived))
            incoming.chunks.add(task)
        else:
            task = asyncio.create_task(self._finish(incoming, frame, payload, arrived))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def link_lost(self, link: UcxLink) -> None:
        """Drop a link's pushes; their windows are free for others."""
        for key in [key for key in self._incoming if key[0] is link]:
            self._give_up(key)

    def forget_all(self) -> None:
        """Close every window."""
        for choice_id in tuple(self._windows):
            self.forget(choice_id)

    async def idle(self) -> None:
        """Wait for the copies under way; call it after the links are closed."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _claim(self, incoming: IncomingPush, frame: KvFrame) -> NackReason | None:
        """Check a header against its window, and claim a free window; return the reason to refuse it."""
        if frame.target_incarnation != self._incarnation:
            return NackReason.WRONG_INCARNATION
        window = self._windows.get(frame.choice_id)
        if window is None:
            return NackReason.NO_RESERVATION
        if frame.epoch != window.epoch:
            return NackReason.STALE_EPOCH if frame.epoch < window.epoch else NackReason.NO_RESERVATION
        if window.owner is None and incoming.window is None:
            window.owner, incoming.window = incoming, window
            incoming.received = np.zeros((self._memory.num_layers, len(window.block_ids)), np.bool_)
        if window.owner is not incoming:
            return NackReason.BUSY
        last_layer, last_block = frame.first_layer + frame.num_layers, frame.first_block + frame.num_blocks
        cells = frame.num_layers * frame.num_blocks
        if not cells or last_layer > self._memory.num_layers or last_block > len(window.block_ids):
            return NackReason.BAD_SHAPE
        if frame.kind is FrameKind.CHUNK:
            cells_received = incoming.cells(frame)
            if frame.payload_bytes != cells * self._memory.layer_block_bytes or cells_received.any():
                return NackReason.BAD_SHAPE
            cells_received[:] = True
        return None

    async def _chunk(self, incoming: IncomingPush, frame: KvFrame, payload: Any, arrived: asyncio.Future[None]) -> None:
        await arrived
        if incoming.over:
            return
        loop = asyncio.get_running_loop()
        try:
            reason = await loop.run_in_executor(self._copies, self._store, incoming, frame, payload)
        except Exception as error:
            # Whatever the memory raises, the sender must receive an answer.
            self._report("KV could not be written", error)
            reason = NackReason.REFUSED
        if reason is NackReason.BAD_CHECKSUM and incoming.resends < MAX_RESENDS and not incoming.over:
            incoming.resends += 1
            incoming.resending.add(frame.chunk_index)
            incoming.cells(frame)[:] = False
            self._answer(incoming, FrameKind.RESEND, chunk=frame)
        elif reason is not None:
            self._refuse(incoming, reason)
        else:
            incoming.stored.add(frame.chunk_index)
            incoming.resending.discard(frame.chunk_index)
            incoming.kv_bytes += frame.payload_bytes

    def _store(self, incoming: IncomingPush, frame: KvFrame, payload: Any) -> NackReason | None:
        """On a copy thread: verify and scatter one chunk."""
        if self._payloads.checksum(payload) != frame.payload_checksum:
            return NackReason.BAD_CHECKSUM
        window = incoming.window
        if window is None:
            return NackReason.NO_RESERVATION
        block_ids = window.block_ids[frame.first_block : frame.first_block + frame.num_blocks]
        with window.lock:
            if window.owner is not incoming:
                return NackReason.NO_RESERVATION
            self._memory.import_layers(frame.first_layer, frame.num_layers, block_ids, payload)
        return None

    async def _finish(
        self, incoming: IncomingPush, frame: KvFrame, payload: NDArray[np.uint8], arrived: asyncio.Future[None]
    ) -> None:
        is_over = True
        try:
            await arrived
            if incoming.chunks:
                await asyncio.wait(incoming.chunks)
            if incoming.over:
                return
            if incoming.resending:
                is_over = False
            elif (reason := self._missing(incoming, frame, payload)) is not None:
                self._refuse(incoming, reason)
            else:
                self._complete(incoming, frame, payload)
        finally:
            if is_over:
                self._give_up((incoming.link, incoming.push_id))

    def _missing(self, incoming: IncomingPush, frame: KvFrame, payload: NDArray[np.uint8]) -> NackReason | None:
        if xxhash.xxh3_64_intdigest(payload.data) != frame.payload_checksum:
            return NackReason.BAD_CHECKSUM
        whole = frame.num_layers == self._memory.num_layers and len(incoming.stored) == frame.chunk_total
        if (
            not whole
            or not incoming.received[:, : frame.num_blocks].all()
            or incoming.received[:, frame.num_blocks :].any()
        ):
            return NackReason.INCOMPLETE
        return None

    def _complete(self, incoming: IncomingPush, frame: KvFrame, payload: NDArray[np.uint8]) -> None:
        try:
            handoff = decode_handoff(frame, payload.data)
        except KvFrameError:
            self._refuse(incoming, NackReason.BAD_SHAPE)
            return
        incoming.over = True
        self._release(incoming)
        del self._windows[frame.choice_id]
        seconds = time.perf_counter() - incoming.started_s
        report = TransferReport(kv_bytes=incoming.kv_bytes, seconds=seconds, transport=incoming.link.transport)
        try:
            self._on_handoff(handoff, report)
        except Exception as error:
            # Whatever the handler raises, the sender must receive an answer.
            self._report("a hand-off was not taken", error)
            self._answer(incoming, FrameKind.NACK, NackReason.REFUSED)
        else:
            self._answer(incoming, FrameKind.ACK)

    def _refuse(self, incoming: IncomingPush, reason: NackReason) -> None:
        if not incoming.over:
            incoming.over = True
            self._release(incoming)
            self._answer(incoming, FrameKind.NACK, reason)

    def _give_up(self, key: tuple[UcxLink, int]) -> None:
        """Drop a push that is over or aborted, or whose sender is gone; idempotent."""
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            incoming.over = True
            self._release(incoming)

    def _release(self, incoming: IncomingPush) -> None:
        """Take the window from a push. Its last scatter may still run; the next owner's scatters wait for the lock."""
        window = incoming.window
        if window is not None and window.owner is incoming:
            window.owner = None

    def _answer(
        self, incoming: IncomingPush, kind: FrameKind, reason: NackReason | None = None, chunk: KvFrame | None = None
    ) -> None:
        answer = KvFrame(
            kind=kind,
            choice_id=incoming.choice_id,
            epoch=incoming.epoch,
            push_id=incoming.push_id,
            sender_incarnation=self._incarnation,
            target_incarnation=incoming.link.peer.incarnation,
            reason=reason,
        )
        if chunk is not None:
            answer = replace(
                answer,
                first_layer=chunk.first_layer,
                num_layers=chunk.num_layers,
                first_block=chunk.first_block,
                num_blocks=chunk.num_blocks,
                chunk_index=chunk.chunk_index,
            )
        try:
            incoming.link.send(answer)
        except KvTransferError:
            # The peer is gone.
            return

    def _report(self, message: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
