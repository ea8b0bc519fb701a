"""State of a process's KV inbox: windows of reserved blocks, and incoming pushes."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
from numpy.typing import NDArray

from spotwise.core.requests.kv_part import KvPart, covers
from spotwise.core.requests.record import KvHandoff
from spotwise.mesh.links.ucx_link import UcxLink
from spotwise.mesh.ports.ports import KvSection, TransferReport
from spotwise.wire.kv_frames import KvFrame, NackReason


class KvWindow:
    """Blocks reserved for one attempt. Each part of their KV belongs to the push that may write it, one at a time; a part that
    has arrived stays its push's. A window is filled when the parts that have arrived, all with one hand-off, are the whole.
    """

    def __init__(self, epoch: int, block_ids: tuple[int, ...], part: KvPart) -> None:
        self.epoch = epoch
        self.block_ids = block_ids
        self.lock = threading.Lock()
        self.owners: set[IncomingPush] = set()
        self._part = part
        self._arrived: list[IncomingPush] = []
        self._handoff: KvHandoff | None = None

    def claim(self, push: IncomingPush) -> NackReason | None:
        """Make a push the owner of its part, or return the reason to refuse it."""
        if not self._part.has(push.part):
            return NackReason.BAD_SHAPE
        if any(push.part.overlap(other.part) for other in self.owners):
            return NackReason.BUSY
        if any(push.part.overlap(other.part) for other in self._arrived):
            return NackReason.NO_RESERVATION
        self.owners.add(push)
        return None

    def arrived(self, push: IncomingPush, handoff: KvHandoff) -> NackReason | None:
        """Note that an owner's part is written, or return the reason to refuse it: another part came with another hand-off."""
        if self._handoff not in (None, handoff):
            return NackReason.BUSY
        self._handoff = handoff
        self.owners.discard(push)
        self._arrived.append(push)
        return None

    @property
    def is_filled(self) -> bool:
        """Whether all parts have arrived."""
        return covers(self._part, [push.part for push in self._arrived])

    def report(self) -> TransferReport:
        """Return the figures of all parts that have arrived."""
        seconds = time.perf_counter() - min(push.started_s for push in self._arrived)
        transports = sorted({push.link.transport for push in self._arrived})
        return TransferReport(sum(push.kv_bytes for push in self._arrived), seconds, ", ".join(transports))


class IncomingPush:
    """One push as it arrives; `over` once it is answered or dropped.

    Attributes:
        part: layers and heads that it moves.
        section: the memory of these, once it has a window.
        received: `[layers, blocks]` of its window, once it has one: cells whose bytes have arrived or are arriving.
        stored: chunks that are in their blocks.
        resending: chunks that arrived damaged, until they are stored.
    """

    def __init__(self, link: UcxLink[KvFrame], first: KvFrame) -> None:
        self.link = link
        self.choice_id = first.choice_id
        self.epoch = first.epoch
        self.push_id = first.push_id
        self.part = first.part
        self.window: KvWindow | None = None
        self.over = False
        self.chunks: set[asyncio.Task[None]] = set()
        self.section: KvSection
        self.received: NDArray[np.bool_]
        self.stored: set[int] = set()
        self.resending: set[int] = set()
        self.resends = 0
        self.kv_bytes = 0
        self.started_s = time.perf_counter()

    def cells(self, frame: KvFrame) -> NDArray[np.bool_]:
        """Return a view of a chunk's cells in `received`."""
        last_layer, last_block = frame.first_layer + frame.num_layers, frame.first_block + frame.num_blocks
        return self.received[frame.first_layer : last_layer, frame.first_block : last_block]
