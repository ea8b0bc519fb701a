"""A GPU's KV cache as KV transfer uses it.

Blocks are gathered into, and scattered from, one flat buffer, on a stream of its own; every method waits for that stream, so
that any thread, stream or network card may read the result. With `direct` the buffers stay on the device (GPUDirect RDMA,
CUDA IPC) and are checked by `word_sum`; otherwise they pass through pinned host memory and are checked by xxh3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import xxhash

from spotwise.core.requests.kv_part import KvPart
from spotwise.engine.kv.cache import PagedKvCache

# Odd, so that a change of one word always changes the sum; the golden ratio spreads the factors (Knuth, TAOCP 3, 6.4).
_MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)
_WORD_BYTES = 8


class DeviceKv:
    """Implements `spotwise.mesh.ports.ports.KvMemory` and `PayloadMemory` over a cache on a GPU; any thread may call it.

    Args:
        cache: the engine's.
        direct: payloads stay on the device.
    """

    def __init__(self, cache: PagedKvCache, *, direct: bool, part: KvPart | None = None) -> None:
        self._cache = cache
        self.part = part or cache.part
        self._direct = direct
        self._is_cuda = cache.device.type == "cuda"
        self._stream = _stream(cache.device)
        # Allocates payloads: no kernel is ever queued on it, so memory that torch allocates for it may be written at once.
        self._idle_stream = _stream(cache.device)

    @property
    def on_host(self) -> bool:
        """Whether payloads pass through the host."""
        return not self._direct

    @property
    def num_layers(self) -> int:
        """Layers of the part."""
        return len(self.part.layers)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together, of the part's heads."""
        return self._cache.bytes_of_heads(len(self.part.kv_heads))

    @property
    def layout(self) -> str:
        """Layout of a block's bytes, and how payloads are checked; peers must match."""
        return f"{self._cache.layout}, summed on the device" if self._direct else self._cache.layout

    def section(self, part: KvPart) -> DeviceKv:
        """Return some of the part's layers and heads, as a memory of its own; raises `ValueError` where it has not all."""
        if not self.part.has(part):
            raise ValueError(f"{part} of a memory with {self.part}")
        return DeviceKv(self._cache, direct=self._direct, part=part)

    @torch.inference_mode()
    def export_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: Any = None) -> Any:
        """Copy blocks to a flat payload, `into` if given: on the device if `direct`, else in pinned host memory.

        Raises:
            ValueError: a layer or a block is not in the cache, or `into` has another size.
        """
        part = self.part.layers_of(first_layer, num_layers)
        with self._own_stream():
            self._wait_for(part.layers[-1])
            data = self._cache.gather_blocks(part, block_ids, into if self._direct else None)
            if self._direct:
                return data
            host = self.allocate(data.numel()) if into is None else into
            if host.nbytes != data.numel():
                raise ValueError(f"{data.numel()} bytes of KV do not go into {host.nbytes}")
            torch.from_numpy(host).copy_(data, non_blocking=True)
        return host

    @torch.inference_mode()
    def import_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: Any) -> None:
        """Copy blocks in: the inverse of `export_layers`.

        Raises:
            ValueError: `data` has another size than the arguments require, or a layer or block is not in the cache.
        """
        with self._own_stream():
            payload = data if self._direct else torch.from_numpy(data).to(self._cache.device, non_blocking=True)
            self._cache.scatter_blocks(self.part.layers_of(first_layer, num_layers), block_ids, payload)

    def allocate(self, size: int) -> Any:
        """Return memory for a payload of `size` bytes: a device tensor if `direct`, else an array in pinned host memory."""
        if not self._direct:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._is_cuda).numpy()
        with torch.cuda.stream(self._idle_stream):
            return torch.empty(size, dtype=torch.uint8, device=self._cache.device)

    @torch.inference_mode()
    def checksum(self, payload: Any) -> int:
        """Return a payload's 64-bit checksum: `word_sum` if `direct`, else xxh3."""
        if not self._direct:
            return xxhash.xxh3_64_intdigest(payload.data)
        with self._own_stream():
            return word_sum(payload)

    def _wait_for(self, last_layer: int) -> None:
        """Make the copy stream wait for a layer, and with it for those that the model writes before."""
        if self._stream is not None and (event := self._cache.written_event(last_layer)) is not None:
            self._stream.wait_event(event)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        """Queue the block on the copy stream, and wait for it."""
        if self._stream is None:
            yield
            return
        with torch.cuda.device(self._cache.device), torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def word_sum(payload: torch.Tensor) -> int:
    """Return a multilinear hash modulo 2^64: each 8-byte word times an odd factor that depends on its index.

    The keys are fixed, so that it detects accidental damage only. The last word is padded with zeros.
    """
    size = payload.numel()
    whole = size // _WORD_BYTES * _WORD_BYTES
    words = payload[:whole].view(torch.int64)
    if whole < size:
        last = payload.new_zeros(_WORD_BYTES)
        last[: size - whole] = payload[whole:]
        words = torch.cat((words, last.view(torch.int64)))
    places = torch.arange(len(words), dtype=torch.int64, device=payload.device)
    total = int((words * (places * _MULTIPLIER | 1)).sum()) + size
    return total % (1 << 64)
