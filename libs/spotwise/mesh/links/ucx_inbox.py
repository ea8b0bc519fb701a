"""Receives pushes into windows of reserved blocks. Only the push that owns a part of a window writes it, on copy threads, under
the window's lock; `forget` takes the lock, so that no block is written after it. A push is complete when every cell (a block
of a layer) has arrived once; when all parts of its window have, their hand-off is announced exactly once. A damaged chunk is
requested again; a COMMIT before it has arrived is answered at the next COMMIT. A refused push is answered once and its
remaining frames are drained; its part is free for the next push. Where windows may open after their first frame, since orders
and KV come from different peers, frames wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from spotwise.core.latest import LatestDict
from spotwise.mesh.links.kv_arrivals import IncomingPush, KvWindow
from spotwise.mesh.links.kv_payloads import ThreadScratch
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.ports.ports import HandoffHandler, KvTransferError, PayloadMemory
from spotwise.mesh.ports.weights import KvSections
from spotwise.wire.framing import FrameError
from spotwise.wire.kv_frames import (
    CHUNK_BYTES,
    MAX_HANDOFF_BYTES,
    MAX_RESENDS,
    FrameKind,
    KvFrame,
    NackReason,
    decode_handoff,
)

#: Far above the sequences of any worker; each costs memory until its COMMIT or ABORT.
_MAX_PUSHES_OF_A_LINK = 4096
#: Closed windows whose late frames are refused at once.
_CLOSED_REMEMBERED = 4096


class KvInbox:
    """Receives pushes into reserved blocks."""

    def __init__(
        self,
        sections: KvSections,
        payloads: PayloadMemory,
        scratch: ThreadScratch,
        incarnation: int,
        on_handoff: HandoffHandler,
        copies: Executor,
        chunk_bytes: int = CHUNK_BYTES,
        window_wait_s: float = 0.0,
    ) -> None:
        """Create the inbox; a push whose window is not open is refused after `window_wait_s`."""
        self._sections = sections
        self._memory = memory = sections.memory
        self._window_wait_s = window_wait_s
        self._opened = asyncio.Event()
        self._closed = LatestDict[str, int](_CLOSED_REMEMBERED)  #: epochs of windows
        self._payloads = payloads
        self._scratch = scratch
        self._incarnation = incarnation
        self._on_handoff = on_handoff
        self._copies = copies
        self._most_chunk_bytes = max(CHUNK_BYTES, chunk_bytes, memory.layer_block_bytes)
        self._windows: dict[str, KvWindow] = {}
        self._incoming: dict[tuple[UcxLink[KvFrame], int], IncomingPush] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def arriving(self) -> int:
        """Pushes under way."""
        return len(self._incoming)

    def expect(self, choice_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Open a window; replaces the choice's earlier one."""
        self.forget(choice_id)
        self._windows[choice_id] = KvWindow(epoch, block_ids, self._memory.part)
        self._opened.set()

    def forget(self, choice_id: str) -> None:
        """Close a window: after this call, no copy writes its blocks. Idempotent."""
        window = self._windows.pop(choice_id, None)
        if window is None:
            return
        self._closed[choice_id] = window.epoch
        for owner in tuple(window.owners):
            self._refuse(owner, NackReason.NO_RESERVATION)
        # A scatter under way ends; those queued behind it find the window without an owner and write nothing.
        with window.lock:
            pass

    def admitted_bytes(self, _link: UcxLink[KvFrame], frame: KvFrame) -> int:
        """Return the largest payload that a header may announce, by its kind and shape; at most a chunk's."""
        if frame.kind is FrameKind.COMMIT:
            return MAX_HANDOFF_BYTES
        if frame.kind is not FrameKind.CHUNK:
            return 0
        claimed_bytes = frame.num_layers * frame.num_blocks * self._memory.layer_block_bytes
        return min(claimed_bytes, self._most_chunk_bytes)

    def receive(
        self, link: UcxLink[KvFrame], frame: KvFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> asyncio.Task[None] | None:
        """Handle a CHUNK, COMMIT or ABORT whose payload is still arriving; the task ends when its buffer is free again."""
        key = (link, frame.push_id)
        if frame.kind is FrameKind.ABORT:
            self._give_up(key)
            return None
        incoming = self._incoming.get(key)
        if incoming is None:
            if sum(known is link for known, _ in self._incoming) >= _MAX_PUSHES_OF_A_LINK:
                raise FrameError(f"more than {_MAX_PUSHES_OF_A_LINK} pushes at once")
            incoming = self._incoming[key] = IncomingPush(link, frame)
        is_early = self._may_still_open(incoming)
        if not is_early:
            self._admit(incoming, frame)
        if frame.kind is FrameKind.CHUNK:
            task = asyncio.create_task(self._chunk(incoming, frame, payload, arrived, is_early=is_early))
            incoming.chunks.add(task)
        else:
            task = asyncio.create_task(self._finish(incoming, frame, payload, arrived, is_early=is_early))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _may_still_open(self, incoming: IncomingPush) -> bool:
        """Whether the window of a push may be opened by an order that is on its way."""
        if incoming.over or incoming.window is not None or not self._window_wait_s:
            return False
        window = self._windows.get(incoming.choice_id)
        latest = self._closed.get(incoming.choice_id, 0) if window is None else window.epoch
        return latest < incoming.epoch and time.perf_counter() - incoming.started_s < self._window_wait_s

    async def _window_opened(self, incoming: IncomingPush) -> None:
        """Wait until the window of a push is open, or will not be."""
        while self._may_still_open(incoming):
            self._opened.clear()
            left_s = self._window_wait_s - (time.perf_counter() - incoming.started_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._opened.wait()

    def _admit(self, incoming: IncomingPush, frame: KvFrame) -> None:
        """Admit a frame into its window, or refuse its push."""
        if not incoming.over and (reason := self._claim(incoming, frame)) is not None:
            self._refuse(incoming, reason)

    def link_lost(self, link: UcxLink[KvFrame]) -> None:
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
        if incoming.window is None:
            if (reason := window.claim(incoming)) is not None:
                return reason
            incoming.window, incoming.section = window, self._sections.of(incoming.part)
            incoming.received = np.zeros((incoming.section.num_layers, len(window.block_ids)), np.bool_)
        if incoming not in window.owners or frame.part != incoming.part:
            return NackReason.BUSY
        section = incoming.section
        last_layer, last_block = frame.first_layer + frame.num_layers, frame.first_block + frame.num_blocks
        cells = frame.num_layers * frame.num_blocks
        if not cells or last_layer > section.num_layers or last_block > len(window.block_ids):
            return NackReason.BAD_SHAPE
        if frame.kind is FrameKind.CHUNK:
            cells_received = incoming.cells(frame)
            if frame.payload_bytes != cells * section.layer_block_bytes or cells_received.any():
                return NackReason.BAD_SHAPE
            cells_received[:] = True
        return None

    async def _chunk(
        self, incoming: IncomingPush, frame: KvFrame, payload: Any, arrived: asyncio.Future[None], *, is_early: bool
    ) -> None:
        await arrived
        if is_early:
            await self._window_opened(incoming)
            self._admit(incoming, frame)
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
        if (seal := incoming.link.incoming_seal) is not None:
            plain = self._scratch.of(frame.payload_bytes)
            if not seal.open_payload(frame.payload_checksum, payload, plain):
                return NackReason.BAD_CHECKSUM
            payload = plain
        elif self._payloads.checksum(payload) != frame.payload_checksum:
            return NackReason.BAD_CHECKSUM
        window = incoming.window
        if window is None:
            return NackReason.NO_RESERVATION
        block_ids = window.block_ids[frame.first_block : frame.first_block + frame.num_blocks]
        with window.lock:
            if incoming not in window.owners:
                return NackReason.NO_RESERVATION
            incoming.section.import_layers(frame.first_layer, frame.num_layers, block_ids, payload)
        return None

    async def _finish(
        self,
        incoming: IncomingPush,
        frame: KvFrame,
        payload: NDArray[np.uint8],
        arrived: asyncio.Future[None],
        *,
        is_early: bool,
    ) -> None:
        is_over = True
        try:
            await arrived
            if incoming.chunks:
                await asyncio.wait(incoming.chunks)
            if is_early:
                await self._window_opened(incoming)
                self._admit(incoming, frame)
            if incoming.over:
                return
            if incoming.resending:
                is_over = False
            elif (plain := self._verified(incoming, frame, payload)) is None:
                self._refuse(incoming, NackReason.BAD_CHECKSUM)
            elif (reason := self._missing(incoming, frame)) is not None:
                self._refuse(incoming, reason)
            else:
                self._complete(incoming, frame, plain)
        finally:
            if is_over:
                self._give_up((incoming.link, incoming.push_id))

    def _verified(self, incoming: IncomingPush, frame: KvFrame, payload: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Return a COMMIT's payload, opened where it is sealed; `None` where it is damaged."""
        if (seal := incoming.link.incoming_seal) is not None:
            plain = np.empty(frame.payload_bytes, np.uint8)
            return plain if seal.open_payload(frame.payload_checksum, payload, plain) else None
        return payload if xxhash.xxh3_64_intdigest(payload.data) == frame.payload_checksum else None

    def _missing(self, incoming: IncomingPush, frame: KvFrame) -> NackReason | None:
        whole = frame.num_layers == incoming.section.num_layers and len(incoming.stored) == frame.chunk_total
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
        except FrameError:
            self._refuse(incoming, NackReason.BAD_SHAPE)
            return
        window = incoming.window
        assert window is not None  # nothing is missing
        if (reason := window.arrived(incoming, handoff)) is not None:
            self._refuse(incoming, reason)
            return
        incoming.over = True
        if not window.is_filled:
            self._answer(incoming, FrameKind.ACK)
            return
        del self._windows[frame.choice_id]
        self._closed[frame.choice_id] = window.epoch
        try:
            self._on_handoff(handoff, window.report())
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

    def _give_up(self, key: tuple[UcxLink[KvFrame], int]) -> None:
        """Drop a push that is over or aborted, or whose sender is gone; idempotent."""
        incoming = self._incoming.pop(key, None)
        if incoming is not None:
            incoming.over = True
            self._release(incoming)

    def _release(self, incoming: IncomingPush) -> None:
        """Take the window from a push. Its last scatter may still run; the next owner's scatters wait for the lock."""
        if incoming.window is not None:
            incoming.window.owners.discard(incoming)

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
            part=incoming.part,
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
