"""The paged KV cache of one engine, all layers of it.

Law: keys and values of a position live in block `block_table[position // block_size]`; who owns a block is decided elsewhere
(`core.kv_blocks`), here are only the bytes. The layout is `[layer, kv_head, block, position in block, dim]`, keys and values
apart: gathering a sequence's blocks for one head gives one contiguous `[length, dim]` matrix, which is what a matrix product
wants, and a tensor shard is a range of heads.

Source: PagedAttention (Kwon et al., SOSP 2023), section 4.1.

Invariants: every byte is a finite number from the start (zero), because padded attention multiplies unused slots by zero;
on a CPU no page is touched before a block in it is written.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """What a model keeps per token.

    Attributes:
        num_layers: attention layers.
        kv_heads: key and value heads of a layer.
        key_dim: elements of one key.
        value_dim: elements of one value; differs from `key_dim` in latent attention (DeepSeek).
    """

    num_layers: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        """Numbers kept per token, all layers, keys and values together."""
        return self.num_layers * self.kv_heads * (self.key_dim + self.value_dim)


class PagedKvCache:
    """Keys and values by layer and block; implements `spotwise.mesh.ports.KvMemory`.

    Exports and imports may run in another thread than the model, on blocks that the running iteration does not use.
    """

    def __init__(
        self, geometry: KvGeometry, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.geometry = geometry
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        shape = (geometry.num_layers, geometry.kv_heads, num_blocks, block_size)
        #: `[num_layers, kv_heads, num_blocks, block_size, key_dim]`
        self.keys = _zeros((*shape, geometry.key_dim), dtype, device)
        #: `[num_layers, kv_heads, num_blocks, block_size, value_dim]`
        self.values = _zeros((*shape, geometry.value_dim), dtype, device)

    @property
    def num_layers(self) -> int:
        """Layers that hold KV."""
        return self.geometry.num_layers

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together."""
        return self._block_bytes(self.geometry.key_dim) + self._block_bytes(self.geometry.value_dim)

    @torch.inference_mode()
    def export_layers(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...]) -> NDArray[np.uint8]:
        """Copy blocks out: a flat contiguous array of `num_layers * len(block_ids) * layer_block_bytes` bytes.

        Layer after layer; in a layer first the keys `[kv_head, block, position, dim]`, then the values.

        Raises:
            ValueError: a layer or a block is not in this cache.
        """
        block_index = self._checked_index(first_layer, num_layers, block_ids)
        data = np.empty(num_layers * len(block_ids) * self.layer_block_bytes, dtype=np.uint8)
        for source, host in self._layer_views(first_layer, num_layers, len(block_ids), data):
            if self.device.type == "cpu":
                torch.index_select(source, 1, block_index, out=host)
            else:
                host.copy_(source.index_select(1, block_index))
        return data

    @torch.inference_mode()
    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Copy blocks in: the inverse of `export_layers`.

        Raises:
            ValueError: `data` has not the size that the arguments say, or a layer or block is not in this cache.
        """
        block_index = self._checked_index(first_layer, num_layers, block_ids)
        expected_bytes = num_layers * len(block_ids) * self.layer_block_bytes
        if data.dtype != np.uint8 or data.size != expected_bytes:
            raise ValueError(f"{expected_bytes} bytes of KV expected, {data.nbytes} given")
        flat = np.ascontiguousarray(data).reshape(-1)
        if not flat.flags.writeable or flat.ctypes.data % self.dtype.itemsize:
            flat = flat.copy()  # torch takes neither read-only nor unaligned memory
        for destination, host in self._layer_views(first_layer, num_layers, len(block_ids), flat):
            destination.index_copy_(1, block_index, host.to(self.device))

    def _block_bytes(self, dim: int) -> int:
        return self.geometry.kv_heads * self.block_size * dim * self.dtype.itemsize

    def _checked_index(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...]) -> torch.Tensor:
        if first_layer < 0 or num_layers < 0 or first_layer + num_layers > self.num_layers:
            raise ValueError(f"layers {first_layer}..{first_layer + num_layers} of a cache with {self.num_layers}")
        if block_ids and not (min(block_ids) >= 0 and max(block_ids) < self.num_blocks):
            raise ValueError(f"a block id outside 0..{self.num_blocks - 1}")
        return torch.tensor(block_ids, dtype=torch.int64, device=self.device)

    def _layer_views(
        self, first_layer: int, num_layers: int, num_blocks: int, data: NDArray[np.uint8]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pair each layer's keys and values with their place in the flat host array."""
        if num_blocks == 0:
            return []
        host = torch.from_numpy(data)
        pairs = []
        offset = 0
        for layer in range(first_layer, first_layer + num_layers):
            for cache in (self.keys[layer], self.values[layer]):
                dim = cache.shape[-1]
                size = num_blocks * self._block_bytes(dim)
                place = host[offset : offset + size].view(self.dtype)
                pairs.append((cache, place.view(self.geometry.kv_heads, num_blocks, self.block_size, dim)))
                offset += size
        return pairs


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch.zeros writes every page; a mapping is zero and committed page by page as it is used. Small pages: each head of
    # each layer begins to fill somewhere else, and with huge ones the first block would commit 2 MiB for each of them.
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
