"""KV hand-offs over UCX: the `KvTransport` of a worker.

Law: all pushes to a peer share its link, with a bounded number of chunks in flight. A chunk is a group of layers of the
pushed blocks (of some of the blocks, where one layer of all of them exceeds `chunk_bytes`); it is exported and checksummed
on a copy thread while earlier chunks travel. A COMMIT with the hand-off ends the push, which succeeded when the receiver's
ACK is here.

Invariants: a push returns after the ACK, or raises; one that is cancelled, refused or fails here is called off with an
ABORT and leaves the link usable; one that times out retires its link. Where the ABORT crosses the ACK the receiver keeps
the hand-off: whoever called it off also forgets the reservation.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import xxhash

from spotwise.core.record import KvHandoff, KvTarget
from spotwise.mesh.ports import HandoffHandler, KvMemory, KvTransferError, PayloadMemory, TransferReport
from spotwise.mesh.ucx_inbox import KvInbox
from spotwise.mesh.ucx_link import HostPayloads, ReceiveBuffers, UcxLink
from spotwise.mesh.ucx_links import UcxLinks
from spotwise.wire.kv_frames import (
    FrameKind,
    KvFrame,
    LinkHello,
    NackReason,
    encode_frame,
    encode_handoff,
    layout_fingerprint,
)

_COPY_THREADS = 2

_REFUSALS = {
    NackReason.NO_RESERVATION: "it holds no reservation for this attempt (released, already filled, or never made)",
    NackReason.STALE_EPOCH: "a later attempt of the request holds the reservation",
    NackReason.WRONG_INCARNATION: "the worker has restarted since it made the reservation",
    NackReason.BUSY: "another push of this attempt is filling the blocks",
    NackReason.BAD_SHAPE: "layers or blocks do not fit; both workers must serve one model with one block size and dtype",
    NackReason.BAD_CHECKSUM: "the KV arrived damaged",
    NackReason.INCOMPLETE: "chunks are missing",
    NackReason.REFUSED: "it could not take the hand-off; its log says why",
}


class UcxKvTransport:
    """Listens for pushes into this worker's memory, and pushes from it."""

    def __init__(
        self,
        memory: KvMemory,
        worker_id: str,
        incarnation: int,
        on_handoff: HandoffHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        push_timeout_s: float = 10.0,
        chunk_bytes: int = 4 * 2**20,
        in_flight: int = 4,
        payloads: PayloadMemory | None = None,
    ) -> None:
        """Describe the transport; nothing is opened before `start`.

        Args:
            memory: this worker's paged KV, read by pushes and written by accepted ones, on copy threads.
            worker_id: this worker.
            incarnation: of this worker; pushes meant for another one are refused.
            on_handoff: called on the loop, once per accepted attempt; where it raises, the sender is refused.
            host: name or address under which peers reach this worker. UCXX itself listens on all interfaces.
            port: port to listen on; 0 takes a free one.
            push_timeout_s: a push takes no longer than this, connecting included.
            chunk_bytes: payload of one chunk at most, unless one block of one layer is larger.
            in_flight: chunks on their way at once, per link and direction.
            payloads: what the memory exports and imports; `None`: numpy arrays.
        """
        if chunk_bytes < 1 or in_flight < 1 or push_timeout_s <= 0:
            raise ValueError("chunk_bytes, in_flight and push_timeout_s must be positive")
        self._memory = memory
        self._incarnation = incarnation
        self._host = host
        self._port = port
        self._push_timeout_s = push_timeout_s
        self._chunk_bytes = chunk_bytes
        self._copies = ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="kv-copy")
        self._payloads: PayloadMemory = payloads or HostPayloads()
        self._inbox = KvInbox(memory, self._payloads, incarnation, on_handoff, self._copies)
        me = LinkHello(0, worker_id, incarnation, layout_fingerprint(memory.layout))
        buffers = ReceiveBuffers(self._payloads, chunk_bytes, keep=2 * in_flight)
        self._links = UcxLinks(me, buffers, in_flight, self._on_frame, self._on_lost)
        self._push_ids = itertools.count(1)
        self._answers: dict[int, tuple[UcxLink, asyncio.Future[KvFrame]]] = {}
        self._address: str | None = None

    @property
    def address(self) -> str:
        """Where peers reach this listener, `host:port`.

        Raises:
            RuntimeError: `start` has not been called.
        """
        if self._address is None:
            raise RuntimeError("the transport listens nowhere yet: await start() first")
        return self._address

    async def start(self) -> None:
        """Open UCX on the running loop and listen.

        Raises:
            MeshError: the port cannot be had.
        """
        self._address = f"{self._host}:{self._links.listen(self._port)}"

    def expect(self, request_id: str, epoch: int, block_ids: tuple[int, ...]) -> None:
        """Accept that attempt's KV, into these blocks; replaces an earlier attempt's window."""
        self._inbox.expect(request_id, epoch, block_ids)

    def forget(self, request_id: str) -> None:
        """Refuse what still comes for the request; after this call its blocks are not written any more. Idempotent."""
        self._inbox.forget(request_id)

    async def push(self, target: KvTarget, handoff: KvHandoff, source_block_ids: tuple[int, ...]) -> TransferReport:
        """Copy blocks into the target's reserved blocks and hand the request over.

        Args:
            target: the reservation; its first `len(source_block_ids)` blocks are written.
            handoff: what the token worker needs besides the KV.
            source_block_ids: just the blocks that hold the `handoff.num_tokens` tokens, in position order. They may be
                given to others as soon as this returns or raises.

        Raises:
            KvTransferError: unreachable, lost, refused or timed out; the text says which and why.
            ValueError: no blocks, or more than the target reserved, or a request id over 128 bytes.
        """
        if not 0 < len(source_block_ids) <= len(target.block_ids):
            raise ValueError(f"{len(source_block_ids)} blocks to push, {len(target.block_ids)} reserved")
        frame = KvFrame(
            kind=FrameKind.ABORT,
            request_id=handoff.request_id,
            epoch=handoff.epoch,
            push_id=next(self._push_ids),
            sender_incarnation=self._incarnation,
            target_incarnation=target.incarnation,
        )
        encode_frame(frame)
        where = f"KV of {handoff.request_id} epoch {handoff.epoch} to {target.worker_id} at {target.address}"
        link: UcxLink | None = None
        try:
            async with asyncio.timeout(self._push_timeout_s):
                link = await self._links.to(target.address, self._push_timeout_s)
                if link.peer.worker_id != target.worker_id:
                    raise KvTransferError(f"{link.peer.worker_id} answers at that address")
                return await self._push(link, frame, handoff, source_block_ids)
        except TimeoutError:
            if link is not None:
                self._links.drop(link)
                link.retired = True
                self._end_if_unused(link)
            raise KvTransferError(f"{where}: not done within {self._push_timeout_s:g} s") from None
        except KvTransferError as error:
            raise KvTransferError(f"{where}: {error}") from None

    async def close(self) -> None:
        """Stop listening, drop links, end the copy threads; pushes under way raise. Idempotent."""
        self._inbox.forget_all()
        await self._links.close()
        await self._inbox.idle()
        self._copies.shutdown()

    async def _push(
        self, link: UcxLink, frame: KvFrame, handoff: KvHandoff, block_ids: tuple[int, ...]
    ) -> TransferReport:
        """Send all chunks and the COMMIT on a link and wait for the answer."""
        started_s = time.perf_counter()
        chunks = list(self._chunks(frame, len(block_ids)))
        answer: asyncio.Future[KvFrame] = asyncio.get_running_loop().create_future()
        self._answers[frame.push_id] = (link, answer)
        committed = False
        kv_bytes = 0
        try:
            for chunk in chunks:
                kv_bytes += await self._send_chunk(link, replace(chunk, chunk_total=len(chunks)), block_ids)
                if answer.done():
                    break
            else:
                self._send_commit(link, replace(frame, chunk_total=len(chunks)), handoff, len(block_ids))
                committed = True
            verdict = await answer
        finally:
            del self._answers[frame.push_id]
            answered = answer.done() and not answer.cancelled()
            if answered:
                answer.exception()  # seen, even where something else is being raised
            if link.alive and not (committed and answered):
                link.send(frame)
            self._end_if_unused(link)
        if verdict.reason is not None:
            raise KvTransferError(f"refused: {_REFUSALS[verdict.reason]}")
        return TransferReport(kv_bytes=kv_bytes, seconds=time.perf_counter() - started_s, transport=link.transport)

    async def _send_chunk(self, link: UcxLink, chunk: KvFrame, block_ids: tuple[int, ...]) -> int:
        """Export a chunk once the link has a slot for it, submit it, and return its bytes."""
        await link.slots.acquire()
        sent: asyncio.Future[Any] | None = None
        try:
            loop = asyncio.get_running_loop()
            payload, checksum = await loop.run_in_executor(self._copies, self._export, chunk, block_ids)
            kv_bytes: int = payload.nbytes
            sent = link.send(replace(chunk, payload_bytes=kv_bytes, payload_checksum=checksum), payload)
        finally:
            if sent is None:
                link.slots.release()
            else:
                sent.add_done_callback(lambda _: link.slots.release())
        return kv_bytes

    def _send_commit(self, link: UcxLink, frame: KvFrame, handoff: KvHandoff, num_blocks: int) -> None:
        payload = encode_handoff(handoff)
        commit = replace(
            frame,
            kind=FrameKind.COMMIT,
            num_layers=self._memory.num_layers,
            num_blocks=num_blocks,
            payload_bytes=len(payload),
            payload_checksum=xxhash.xxh3_64_intdigest(payload),
        )
        link.send(commit, payload)

    def _chunks(self, frame: KvFrame, num_blocks: int) -> Iterator[KvFrame]:
        """Cut a hand-off: groups of layers of all blocks, or of block ranges where one layer is too much."""
        cell_bytes = self._memory.layer_block_bytes
        blocks_each = max(1, min(num_blocks, self._chunk_bytes // cell_bytes))
        layers_each = max(1, self._chunk_bytes // (cell_bytes * num_blocks))
        numbers = itertools.count()
        for first_layer in range(0, self._memory.num_layers, layers_each):
            for first_block in range(0, num_blocks, blocks_each):
                yield replace(
                    frame,
                    kind=FrameKind.CHUNK,
                    first_layer=first_layer,
                    num_layers=min(layers_each, self._memory.num_layers - first_layer),
                    first_block=first_block,
                    num_blocks=min(blocks_each, num_blocks - first_block),
                    chunk_index=next(numbers),
                )

    def _export(self, chunk: KvFrame, block_ids: tuple[int, ...]) -> tuple[Any, int]:
        """On a copy thread: gather one chunk and checksum it."""
        blocks = block_ids[chunk.first_block : chunk.first_block + chunk.num_blocks]
        payload = self._memory.export_layers(chunk.first_layer, chunk.num_layers, blocks)
        return payload, self._payloads.checksum(payload)

    def _on_frame(
        self, link: UcxLink, frame: KvFrame, payload: Any, arrived: asyncio.Future[None]
    ) -> asyncio.Task[None] | None:
        if frame.kind not in (FrameKind.ACK, FrameKind.NACK):
            return self._inbox.receive(link, frame, payload, arrived)
        waiting = self._answers.get(frame.push_id)
        if waiting is not None and waiting[0] is link and not waiting[1].done():
            waiting[1].set_result(frame)
        return None

    def _on_lost(self, link: UcxLink, reason: str) -> None:
        self._inbox.link_lost(link)
        for waiting, answer in tuple(self._answers.values()):
            if waiting is link and not answer.done():
                answer.set_exception(KvTransferError(f"connection lost: {reason}"))

    def _end_if_unused(self, link: UcxLink) -> None:
        if link.retired and all(user is not link for user, _ in self._answers.values()):
            link.fail("retired after a time-out")
