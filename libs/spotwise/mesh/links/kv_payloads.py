"""The frames of links that carry KV, and the buffers of their payloads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from spotwise.core.messages.numerics import Crossing, is_crossing
from spotwise.mesh.links.ucx_link import LinkProtocol
from spotwise.mesh.ports.ports import KvTransferError, PayloadMemory, classes_differ, layouts_differ, models_differ
from spotwise.mesh.security.seal import SEALED_BYTES
from spotwise.wire.kv_frames import FRAME_BYTES, FrameKind, KvFrame, decode_frame, encode_frame
from spotwise.wire.link_hello import LinkHello, LinkKind

# Payloads up to this size are not worth a pooled buffer.
_SMALL_BYTES = 4096


def kv_links(crossing: Crossing = Crossing.COUNT) -> LinkProtocol[KvFrame]:
    """Return the protocol of links between workers with one KV layout and the same weights; where crossings are refused, also
    of one numerics class.
    """

    def why_not(mine: LinkHello, theirs: LinkHello) -> KvTransferError | None:
        if theirs.layout != mine.layout:
            return layouts_differ(mine.worker_id, theirs.worker_id)
        if theirs.model_digest != mine.model_digest:
            return models_differ(mine.worker_id, mine.model_digest, theirs.worker_id, theirs.model_digest)
        if crossing is Crossing.REFUSE and is_crossing(mine.numerics_class, theirs.numerics_class):
            return classes_differ(mine.worker_id, mine.numerics_class, theirs.worker_id, theirs.numerics_class)
        return None

    return LinkProtocol(LinkKind.KV, FRAME_BYTES, encode_frame, decode_frame, why_not)


class HostPayloads:
    """A `PayloadMemory` of numpy arrays and xxh3."""

    on_host = True

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Return an array of `size` bytes."""
        return np.empty(size, np.uint8)

    def checksum(self, payload: NDArray[np.uint8]) -> int:
        """Return its xxh3 of 64 bits."""
        return xxhash.xxh3_64_intdigest(payload.data)


class PayloadBuffers:
    """A pool of payload buffers: fresh memory costs a page fault per 4 KiB."""

    def __init__(self, payloads: PayloadMemory, buffer_bytes: int, keep: int) -> None:
        self._payloads = payloads
        self._buffer_bytes = buffer_bytes + (SEALED_BYTES if payloads.on_host else 0)
        self._keep = keep
        self._free: list[Any] = []

    def take(self, frame: KvFrame, *, is_sealed: bool = False) -> Any:
        """Return a buffer of at least a frame's payload, sealed or not; only those of chunks need `PayloadMemory`."""
        size = frame.payload_bytes + (SEALED_BYTES if is_sealed else 0)
        if frame.kind is not FrameKind.CHUNK:
            return np.empty(size, np.uint8)
        if size <= _SMALL_BYTES or size > self._buffer_bytes:
            return self._payloads.allocate(size)
        return self._free.pop() if self._free else self._payloads.allocate(self._buffer_bytes)

    def give(self, buffer: Any) -> None:
        """Take back a buffer that is not read or written any more."""
        if buffer.nbytes == self._buffer_bytes and len(self._free) < self._keep:
            self._free.append(buffer)


class ThreadScratch:
    """Memory of each copy thread, in which chunks lie between a cache and their sealed form."""

    def __init__(self, payloads: PayloadMemory) -> None:
        self._payloads = payloads
        self._of_thread = threading.local()

    def of(self, size: int) -> NDArray[np.uint8]:
        """Return the calling thread's memory, at this size; the next call of the thread returns the same memory."""
        memory: NDArray[np.uint8] | None = getattr(self._of_thread, "memory", None)
        if memory is None or memory.nbytes < size:
            memory = self._of_thread.memory = self._payloads.allocate(size)
        return memory[:size]
