"""Swap space for KV blocks in host memory (FastServe, Wu et al., 2023, section 4.2).

The host's blocks lie in a cache of the device's shape and order; `core.worker.swaps` decides who owns them. A move copies
through two bounded buffers, pinned on a GPU and on a stream beside the model's, and is complete when it returns. That needs no
order between the streams: the running iteration uses other blocks, and what a move reads was finished before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import cycle

import torch

from spotwise.engine.kv.cache import PagedKvCache

#: Smaller buffers cost more, since every copy takes one call for each layer.
_BUFFER_BYTES = 16 << 20


class HostSwap:
    """Swaps blocks between a device's cache and host memory; one thread at a time may call it.

    Args:
        cache: the device's.
        num_blocks: swap capacity in blocks.
    """

    def __init__(self, cache: PagedKvCache, num_blocks: int) -> None:
        is_cuda = cache.device.type == "cuda"
        self.num_blocks = num_blocks
        self._cache = cache
        self._host = PagedKvCache(
            cache.geometry,
            num_blocks,
            cache.block_size,
            cache.dtype,
            torch.device("cpu"),
            order=cache.order,
            part=cache.part,
        )
        self._part = cache.part
        self._block_bytes = _block_bytes(cache)
        self._at_once = max(1, _BUFFER_BYTES // self._block_bytes)
        self._buffers = tuple(_Buffer(self._at_once * self._block_bytes, pinned=is_cuda) for _ in range(2))
        self._stream = torch.cuda.Stream(cache.device) if is_cuda else None  # type: ignore[no-untyped-call]

    @classmethod
    def within(cls, cache: PagedKvCache, num_bytes: int) -> HostSwap:
        """Return a swap space with as many blocks as fit into `num_bytes`.

        Raises:
            ValueError: not even one block fits.
        """
        if num_bytes < _block_bytes(cache):
            raise ValueError(f"kv_host_bytes is {num_bytes}; one block of this model takes {_block_bytes(cache)}")
        return cls(cache, num_bytes // _block_bytes(cache))

    @torch.inference_mode()
    def swap_out(self, block_ids: tuple[int, ...], host_block_ids: tuple[int, ...]) -> None:
        """Copy blocks of the device into blocks of the host.

        Raises:
            ValueError: the numbers of blocks differ, or a block does not exist.
        """
        with self._own_stream():
            filled: tuple[_Buffer, torch.Tensor, tuple[int, ...]] | None = None
            for buffer, device_ids, host_ids in self._parts(block_ids, host_block_ids):
                data = buffer.of_size(len(device_ids) * self._block_bytes)
                if self._stream is None:
                    self._cache.gather_blocks(self._part, device_ids, data)
                else:
                    data.copy_(self._cache.gather_blocks(self._part, device_ids), non_blocking=True)
                    buffer.note_queued()
                if filled is not None:
                    self._keep(*filled)
                filled = buffer, data, host_ids
            if filled is not None:
                self._keep(*filled)

    def _keep(self, buffer: _Buffer, data: torch.Tensor, host_ids: tuple[int, ...]) -> None:
        buffer.wait()
        self._host.scatter_blocks(self._part, host_ids, data)

    @torch.inference_mode()
    def swap_in(self, host_block_ids: tuple[int, ...], block_ids: tuple[int, ...]) -> None:
        """Copy blocks of the host into blocks of the device.

        Raises:
            ValueError: as `swap_out`.
        """
        with self._own_stream():
            for buffer, host_ids, device_ids in self._parts(host_block_ids, block_ids):
                buffer.wait()  # the device may still read its previous content
                data = buffer.of_size(len(host_ids) * self._block_bytes)
                self._host.gather_blocks(self._part, host_ids, data)
                payload = data.to(self._cache.device, non_blocking=True)
                self._cache.scatter_blocks(self._part, device_ids, payload)
                buffer.note_queued()

    def _parts(
        self, source_ids: tuple[int, ...], target_ids: tuple[int, ...]
    ) -> Iterator[tuple[_Buffer, tuple[int, ...], tuple[int, ...]]]:
        """Split a move into parts of at most one buffer, alternating the buffers."""
        if len(source_ids) != len(target_ids):
            raise ValueError(f"{len(source_ids)} blocks do not go into {len(target_ids)}")
        for first, buffer in zip(range(0, len(source_ids), self._at_once), cycle(self._buffers), strict=False):
            part = slice(first, first + self._at_once)
            yield buffer, source_ids[part], target_ids[part]

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Queue the block on the swap stream, and wait for it even on an error, since its buffers are reused."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._cache.device), torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()


class _Buffer:
    """A staging buffer in host memory; with a GPU it is pinned, and an event marks its last use."""

    def __init__(self, num_bytes: int, *, pinned: bool) -> None:
        self._data = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._queued = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def of_size(self, num_bytes: int) -> torch.Tensor:
        """Return its first `num_bytes` bytes."""
        return self._data[:num_bytes]

    def note_queued(self) -> None:
        """Record the use of the buffer that was queued on the current stream."""
        if self._queued is not None:
            self._queued.record()

    def wait(self) -> None:
        """Wait until the device has finished the last recorded use."""
        if self._queued is not None:
            self._queued.synchronize()


def _block_bytes(cache: PagedKvCache) -> int:
    return len(cache.part.layers) * cache.layer_block_bytes
