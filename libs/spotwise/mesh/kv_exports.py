"""Chunks of this worker's KV, copied out and put on a link.

Law: a chunk is gathered and checksummed on a copy thread, never on the loop, and then submitted to its link. What all pushes
of a worker have copied out and not sent is bounded (`budget`), so that many slow peers cannot fill its memory.

Invariants: a chunk's slot and bytes are given back once it has left, or could not; a chunk that is called off is over only
when the copy thread has left its blocks.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from spotwise.core.kv_stream import KvStream
from spotwise.mesh.byte_budget import ByteBudget
from spotwise.mesh.ports import KvMemory, PayloadMemory
from spotwise.mesh.ucx_link import PayloadBuffers, UcxLink
from spotwise.wire.kv_frames import KvFrame


@dataclass(frozen=True, slots=True)
class KvExports:
    """What all pushes of a worker share.

    Attributes:
        memory: what they read.
        payloads: what they carry it in.
        buffers: used again and again for what is copied.
        copies: threads that copy and checksum.
        budget: of exported bytes.
        chunk_bytes: of one chunk at most, unless one block of one layer is larger.
        stream_bytes: for which a chunk waits while its next layer is computed.
    """

    memory: KvMemory
    payloads: PayloadMemory
    buffers: PayloadBuffers
    copies: Executor
    budget: ByteBudget
    chunk_bytes: int
    stream_bytes: int

    def stream(self, num_blocks: int) -> KvStream:
        """Return the cells of so many blocks, none of them written."""
        memory = self.memory
        return KvStream(memory.num_layers, num_blocks, memory.layer_block_bytes, self.chunk_bytes, self.stream_bytes)

    def bytes_of(self, frame: KvFrame) -> int:
        """Return the payload of a chunk."""
        return frame.num_layers * frame.num_blocks * self.memory.layer_block_bytes

    async def start(self, link: UcxLink, frame: KvFrame, block_ids: tuple[int, ...]) -> asyncio.Task[None]:
        """Take room for a chunk, for which the caller holds a slot of the link; export and submit it in the background.

        Args:
            link: where to.
            frame: the chunk's header; its payload's size and checksum are filled in.
            block_ids: of the whole push.

        Returns:
            What ends when the chunk is submitted; it raises what the memory or the link raises.
        """
        num_bytes = self.bytes_of(frame)
        frame = replace(frame, payload_bytes=num_bytes)
        try:
            await self.budget.take(num_bytes)
        except BaseException:
            link.slots.release()
            raise
        submitted: list[asyncio.Future[Any]] = []
        buffer = self.buffers.take(frame)

        def left(_: object) -> None:
            if link.alive:  # UCX may still read what a link that failed was given
                self.buffers.give(buffer)
            self.budget.give(num_bytes)
            link.slots.release()

        def ended(_: asyncio.Task[None]) -> None:
            if submitted:
                submitted[0].add_done_callback(left)
            else:
                left(None)

        export = asyncio.create_task(self._export(link, frame, block_ids, buffer[:num_bytes], submitted))
        export.add_done_callback(ended)
        return export

    async def _export(
        self,
        link: UcxLink,
        frame: KvFrame,
        block_ids: tuple[int, ...],
        into: Any,
        submitted: list[asyncio.Future[Any]],
    ) -> None:
        copying = asyncio.get_running_loop().run_in_executor(self.copies, self._copy, frame, block_ids, into)
        try:
            payload, checksum = await asyncio.shield(copying)
        except asyncio.CancelledError:
            await asyncio.wait({copying})  # the blocks are read until then
            raise
        submitted.append(link.send(replace(frame, payload_checksum=checksum), payload))

    def _copy(self, frame: KvFrame, block_ids: tuple[int, ...], into: Any) -> tuple[Any, int]:
        """On a copy thread: gather one chunk and checksum it."""
        blocks = block_ids[frame.first_block : frame.first_block + frame.num_blocks]
        payload = self.memory.export_layers(frame.first_layer, frame.num_layers, blocks, into)
        return payload, self.payloads.checksum(payload)
