"""Exports chunks of this worker's KV and sends them. A copy thread, never the loop, gathers and checksums a chunk, or seals it
for an encrypted link, which it is then submitted to. The bytes exported and not sent by all pushes of a worker are bounded
(`budget`), so that slow peers cannot fill its memory. A cancelled export ends only after the copy thread has finished reading
its blocks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.kv.stream import KvStream
from spotwise.mesh.links.kv_payloads import PayloadBuffers, ThreadScratch
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.ports.ports import KvSection, PayloadMemory
from spotwise.mesh.security.seal import SEALED_BYTES
from spotwise.wire.kv_frames import KvFrame


class ByteBudget:
    """Bounds the bytes held at once, on one event loop, to `limit_bytes`, unless a single holder has more.

    Requests are granted in order of arrival, so that small ones do not starve a large one; a request larger than the whole
    budget is granted when nothing else is held.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        #: Bytes held now.
        self.held_bytes = 0

    async def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` fit; `give` them back afterwards."""
        if not self._waiting and self._fits(num_bytes):
            self.held_bytes += num_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, num_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._serve()  # the cancelled request may have been first
            else:
                self.give(num_bytes)  # granted in the same turn of the loop
            raise

    def give(self, num_bytes: int) -> None:
        """Give bytes back."""
        self.held_bytes -= num_bytes
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            turn, num_bytes = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(num_bytes):
                    return
                self.held_bytes += num_bytes
                turn.set_result(None)
            self._waiting.popleft()

    def _fits(self, num_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + num_bytes <= self._limit_bytes


@dataclass(frozen=True, slots=True)
class KvExports:
    """Exports of one section of a worker's KV, for all pushes of it.

    Attributes:
        copies: threads that copy and checksum.
        budget: bytes that may be exported at a time.
        scratch: memory of each copy thread.
        chunk_bytes: a chunk's maximum, unless one block of one layer is larger.
        stream_bytes: a chunk's minimum while its next layer is still computed.
    """

    memory: KvSection
    payloads: PayloadMemory
    buffers: PayloadBuffers
    copies: Executor
    budget: ByteBudget
    scratch: ThreadScratch
    chunk_bytes: int
    stream_bytes: int

    def stream(self, num_blocks: int) -> KvStream:
        """Return a stream of `num_blocks` blocks, none of them written."""
        memory = self.memory
        return KvStream(memory.num_layers, num_blocks, memory.layer_block_bytes, self.chunk_bytes, self.stream_bytes)

    def bytes_of(self, frame: KvFrame) -> int:
        """Return the payload bytes of a chunk."""
        return frame.num_layers * frame.num_blocks * self.memory.layer_block_bytes

    async def start(
        self, link: UcxLink[KvFrame], frame: KvFrame, block_ids: tuple[int, ...], on_sent: Callable[[], None]
    ) -> asyncio.Task[None]:
        """Wait for the budget, then export and submit a chunk in the background.

        Args:
            link: the caller holds one of its slots, which is released once the chunk is sent.
            frame: the chunk's header, without its payload's size and checksum.
            block_ids: blocks of the whole push.
            on_sent: called on the loop once the chunk is sent, or will not be.

        Returns:
            A task that ends when the chunk is submitted; it raises the memory's or the link's errors.
        """
        num_bytes = self.bytes_of(frame)
        frame = replace(frame, payload_bytes=num_bytes)
        try:
            await self.budget.take(num_bytes)
        except BaseException:
            link.slots.release()
            on_sent()
            raise
        submitted: list[asyncio.Future[Any]] = []
        buffer = self.buffers.take(frame, is_sealed=link.is_sealed)

        def left(_: object) -> None:
            if link.alive:  # UCX may still read buffers of a failed link
                self.buffers.give(buffer)
            self.budget.give(num_bytes)
            link.slots.release()
            on_sent()

        def ended(_: asyncio.Task[None]) -> None:
            if submitted:
                submitted[0].add_done_callback(left)
            else:
                left(None)

        into = buffer[: num_bytes + (SEALED_BYTES if link.is_sealed else 0)]
        export = asyncio.create_task(self._export(link, frame, block_ids, into, submitted))
        export.add_done_callback(ended)
        return export

    async def _export(
        self,
        link: UcxLink[KvFrame],
        frame: KvFrame,
        block_ids: tuple[int, ...],
        into: Any,
        submitted: list[asyncio.Future[Any]],
    ) -> None:
        copying = asyncio.get_running_loop().run_in_executor(self.copies, self._copy, link, frame, block_ids, into)
        try:
            payload, checksum = await asyncio.shield(copying)
        except asyncio.CancelledError:
            await asyncio.wait({copying})  # the blocks are read until then
            raise
        submitted.append(link.send(replace(frame, payload_checksum=checksum), payload))

    def _copy(self, link: UcxLink[KvFrame], frame: KvFrame, block_ids: tuple[int, ...], into: Any) -> tuple[Any, int]:
        blocks = block_ids[frame.first_block : frame.first_block + frame.num_blocks]
        seal = link.outgoing_seal
        if seal is None:
            payload = self.memory.export_layers(frame.first_layer, frame.num_layers, blocks, into)
            return payload, self.payloads.checksum(payload)
        plain = self.scratch.of(frame.payload_bytes)
        payload = self.memory.export_layers(frame.first_layer, frame.num_layers, blocks, plain)
        return into, seal.seal_payload(payload, into)
