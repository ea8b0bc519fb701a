"""Sends one part of a hand-off to another process. Cells are sent as they are written, in the chunks that `KvStream` cuts; a
chunk is cut only when the link has a slot, so that a waiting one grows. COMMIT follows all chunks, and the receiver's ACK ends
the push; a push that is not accepted ends with ABORT, one that times out retires its link. Where ABORT crosses ACK the
receiver keeps what it has, so that a caller that aborts must also release the reservation. The time-out does not run while
the engine has nothing to send. After the push, nothing reads its blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from typing import Any, Protocol

import xxhash

from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.mesh.links.kv_exports import KvExports
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.ports.ports import KvTransferError, TransferReport
from spotwise.mesh.security.seal import sealed_copy
from spotwise.wire.kv_frames import MAX_RESENDS, FrameKind, KvFrame, NackReason, encode_frame, encode_handoff

_REFUSALS = {
    NackReason.NO_RESERVATION: "it holds no reservation for this attempt (released, already filled, or never made)",
    NackReason.STALE_EPOCH: "a later attempt of the request holds the reservation",
    NackReason.WRONG_INCARNATION: "the worker has restarted since it made the reservation",
    NackReason.BUSY: "another push of this attempt fills the blocks",
    NackReason.BAD_SHAPE: "layers or blocks do not fit; both workers must serve one model with one block size and dtype",
    NackReason.BAD_CHECKSUM: "the KV arrived damaged",
    NackReason.INCOMPLETE: "chunks are missing",
    NackReason.REFUSED: "it could not take the hand-off; see its log",
}


class PushLinks(Protocol):
    """Connects pushes to their links and routes the answers."""

    async def join(self, push: UcxPush, address: str, timeout_s: float) -> UcxLink[KvFrame]:
        """Return the link to a peer, and route its frames for the push from now on; raises `KvTransferError`: unreachable."""

    def leave(self, push: UcxPush, *, timed_out: bool) -> None:
        """Note that the push is over; a link on which one timed out is not used again."""


class UcxPush:
    """Implements `spotwise.mesh.ports.ports.KvPush`; to be made on the loop. `push_id` is unique among this worker's pushes."""

    def __init__(
        self,
        exports: KvExports,
        links: PushLinks,
        abort: KvFrame,
        target: KvTarget,
        block_ids: tuple[int, ...],
        timeout_s: float,
    ) -> None:
        """Begin; `abort` is the push's ABORT frame, from which the other headers are made. `timeout_s`: longest time without
        progress before the commit, connecting included; longest time after it. Raises `ValueError` for no blocks, more than
        the target reserved, or an id that fits no frame.
        """
        if not 0 < len(block_ids) <= len(target.block_ids):
            raise ValueError(f"{len(block_ids)} blocks to push, {len(target.block_ids)} reserved")
        encode_frame(abort)
        self.push_id = abort.push_id
        self._exports = exports
        self._links = links
        self._abort_frame = abort
        self._target = target
        self._block_ids = block_ids
        self._timeout_s = timeout_s
        self._stream = exports.stream(len(block_ids))
        self._news = asyncio.Event()
        self._handoff: KvHandoff | None = None
        self._committed_s = 0.0
        self._is_called_off = False
        self._cut: list[KvFrame] = []
        self._again: deque[KvFrame] = deque()
        self._resends = 0
        self._kv_bytes = 0
        self._exporting: set[asyncio.Task[None]] = set()
        self._unsent = 0
        self._has_sent_all = asyncio.Event()
        self._answer: asyncio.Future[KvFrame] = asyncio.get_running_loop().create_future()
        self._answer.add_done_callback(lambda _: self._news.set())
        self._task = asyncio.create_task(self._run(), name="kv-push")

    def wrote(self, layers: int, blocks: int) -> None:
        """See `KvPush`."""
        self._stream.wrote(layers, blocks)
        self._news.set()

    def commit(self, handoff: KvHandoff, source_block_ids: tuple[int, ...] = ()) -> None:
        """See `KvPush`."""
        if source_block_ids:
            self._grow(source_block_ids)
        if not self._stream.is_written:
            raise ValueError(f"the KV of {handoff.choice_id} is not all written")
        self._handoff = handoff
        self._committed_s = time.perf_counter()
        self._news.set()

    def _grow(self, block_ids: tuple[int, ...]) -> None:
        before, reserved = self._block_ids, len(self._target.block_ids)
        if block_ids[: len(before)] != before or len(block_ids) > reserved:
            raise ValueError(
                f"a push of {len(before)} blocks, {reserved} reserved, cannot grow to {len(block_ids)} others"
            )
        self._block_ids = block_ids
        self._stream.grow(len(block_ids))
        self._stream.wrote(self._exports.memory.num_layers, len(block_ids))

    async def caught_up(self) -> None:
        """See `KvPush`."""
        await self._has_sent_all.wait()

    def abort(self) -> None:
        """See `KvPush`."""
        if not self._task.done():
            self._is_called_off = True
            self._task.cancel()

    async def delivered(self) -> TransferReport:
        """See `KvPush`; cancelling this call aborts the push."""
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._is_called_off and self._task.done():
                raise KvTransferError(f"{self._where}: called off") from None
            raise

    def answered(self, frame: KvFrame) -> None:
        """Take an ACK or NACK; only the first counts."""
        if not self._answer.done():
            self._answer.set_result(frame)

    def lost(self, reason: str) -> None:
        """Note that the link is gone."""
        self._fail(KvTransferError(f"connection lost: {reason}"))

    def resend(self, frame: KvFrame) -> None:
        """Send a chunk again that arrived damaged."""
        self._resends += 1
        if self._resends > MAX_RESENDS or frame.chunk_index >= len(self._cut):
            self._fail(KvTransferError(f"refused: {_REFUSALS[NackReason.BAD_CHECKSUM]}"))
            return
        self._again.append(self._cut[frame.chunk_index])
        self._news.set()

    @property
    def _where(self) -> str:
        frame, target = self._abort_frame, self._target
        return f"KV of {frame.choice_id} epoch {frame.epoch} to {target.worker_id} at {target.address}"

    async def _run(self) -> TransferReport:
        timed_out = False
        try:
            async with asyncio.timeout(self._timeout_s) as patience:
                link = await self._links.join(self, self._target.address, self._timeout_s)
                if link.peer.worker_id != self._target.worker_id:
                    raise KvTransferError(f"{link.peer.worker_id} answers at that address")
                return await self._push(link, patience)
        except TimeoutError:
            timed_out = True
            raise KvTransferError(f"{self._where}: not done within {self._timeout_s:g} s") from None
        except KvTransferError as error:
            raise KvTransferError(f"{self._where}: {error}") from None
        finally:
            self._has_sent_all.set()
            self._links.leave(self, timed_out=timed_out)
            if self._answer.done() and not self._answer.cancelled():
                self._answer.exception()  # retrieved, so that asyncio does not log it

    async def _push(self, link: UcxLink[KvFrame], patience: asyncio.Timeout) -> TransferReport:
        started_s = time.perf_counter()
        try:
            await self._send_until_answered(link, patience)
        finally:
            for export in self._exporting:
                export.cancel()
            if self._exporting:
                await asyncio.wait(self._exporting)
            if link.alive and not self._is_accepted:
                link.send(self._abort_frame)
        verdict = self._answer.result()
        if verdict.reason is not None:
            raise KvTransferError(f"refused: {_REFUSALS[verdict.reason]}")
        ended_s = time.perf_counter()
        return TransferReport(self._kv_bytes, ended_s - started_s, link.transport, ended_s - self._committed_s)

    @property
    def _is_accepted(self) -> bool:
        answer = self._answer
        return answer.done() and answer.exception() is None and answer.result().reason is None

    async def _send_until_answered(self, link: UcxLink[KvFrame], patience: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        commit_sent = False
        counts_from_commit = False
        while not self._answer.done():
            self._news.clear()
            if self._handoff is not None and not counts_from_commit:
                counts_from_commit = True
                patience.reschedule(loop.time() + self._timeout_s - (time.perf_counter() - self._committed_s))
            if self._again or self._stream.has_chunk:
                if not counts_from_commit:
                    patience.reschedule(loop.time() + self._timeout_s)
                commit_sent = commit_sent and not self._again
                await self._start_chunk(link)
            elif self._handoff is not None and not self._exporting and not commit_sent:
                commit_sent = True
                self._send_commit(link, self._handoff)
            else:
                if not counts_from_commit:
                    patience.reschedule(None)
                if not self._unsent:
                    self._has_sent_all.set()
                await self._news.wait()

    async def _start_chunk(self, link: UcxLink[KvFrame]) -> None:
        await link.slots.acquire()
        frame = self._again.popleft() if self._again else self._next_frame()
        if frame is None:
            link.slots.release()  # the chunk now waits for its next layer
            return
        self._unsent += 1
        export = await self._exports.start(link, frame, self._block_ids, self._sent)
        self._exporting.add(export)
        export.add_done_callback(self._exported)

    def _next_frame(self) -> KvFrame | None:
        chunk = self._stream.next_chunk()
        if chunk is None:
            return None
        frame = replace(
            self._abort_frame,
            kind=FrameKind.CHUNK,
            first_layer=chunk.first_layer,
            num_layers=chunk.num_layers,
            first_block=chunk.first_block,
            num_blocks=chunk.num_blocks,
            chunk_index=len(self._cut),
        )
        self._cut.append(frame)
        self._kv_bytes += self._exports.bytes_of(frame)
        return frame

    def _sent(self) -> None:
        self._unsent -= 1
        self._news.set()

    def _exported(self, export: asyncio.Task[None]) -> None:
        self._exporting.discard(export)
        if not export.cancelled() and (error := export.exception()) is not None:
            self._fail(error)
        self._news.set()

    def _send_commit(self, link: UcxLink[KvFrame], handoff: KvHandoff) -> None:
        payload: Any = encode_handoff(handoff)
        size, seal = len(payload), link.outgoing_seal
        if seal is None:
            checksum = xxhash.xxh3_64_intdigest(payload)
        else:
            payload, checksum = sealed_copy(seal, payload)
        commit = replace(
            self._abort_frame,
            kind=FrameKind.COMMIT,
            num_layers=self._exports.memory.num_layers,
            num_blocks=len(self._block_ids),
            chunk_total=len(self._cut),
            payload_bytes=size,
            payload_checksum=checksum,
        )
        link.send(commit, payload)

    def _fail(self, error: BaseException) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
