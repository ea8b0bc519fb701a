"""State of a worker's KV inbox: windows of reserved blocks, and incoming pushes."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
from numpy.typing import NDArray

from spotwise.mesh.ucx_link import UcxLink
from spotwise.wire.kv_frames import KvFrame


class KvWindow:
    """Blocks reserved for one attempt; `owner` is the push that may write them now."""

    def __init__(self, epoch: int, block_ids: tuple[int, ...]) -> None:
        self.epoch = epoch
        self.block_ids = block_ids
        self.lock = threading.Lock()
        self.owner: IncomingPush | None = None


class IncomingPush:
    """One push as it arrives; `over` once it is answered or dropped.

    Attributes:
        received: `[layers, blocks]` of its window, once it has one: cells whose bytes have arrived or are arriving.
        stored: chunks that are in their blocks.
        resending: chunks that arrived damaged, until they are stored.
    """

    def __init__(self, link: UcxLink, first: KvFrame) -> None:
        self.link = link
        self.choice_id = first.choice_id
        self.epoch = first.epoch
        self.push_id = first.push_id
        self.window: KvWindow | None = None
        self.over = False
        self.chunks: set[asyncio.Task[None]] = set()
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
