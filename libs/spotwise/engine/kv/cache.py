"""The paged KV cache of one engine (PagedAttention: Kwon et al., SOSP 2023, section 4.1).

A position's keys and values lie in block `block_table[position // block_size]`; `core.kv_blocks` decides whose it is.
Keys and values are separate, `[layer, kv_head, block, ...]`, so that a tensor shard is a range of heads. All bytes start as
zero, since padded attention multiplies unused slots by zero; on a CPU a page is committed when first written. A member of a
group uses a part of the layers and heads; on a CPU it has the addresses of all, so that these survive a change of its part.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spotwise.core.requests.kv_part import KvPart
from spotwise.engine.kv.host_rows import HostKvRows
from spotwise.engine.kv.reserved_memory import reserved_zeros


class KvOrder(enum.StrEnum):
    """How the positions of a block lie in memory.

    PLAIN: `[position, dim]`: a sequence's gathered blocks are one matrix.
    TILED: keys `[dim / pair, position, pair]`, values `[position / pair, dim, pair]`, a pair being 4 bytes: the order in which
        the native kernel multiplies, so that it need not gather blocks.
    """

    PLAIN = "plain"
    TILED = "tiled"


#: Block size, in positions, that can be tiled.
TILED_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of the KV that a model keeps per token.

    Attributes:
        num_layers: attention layers.
        kv_heads: KV heads of a layer.
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


@dataclass(frozen=True, slots=True)
class KvPlaces:
    """Where new positions are written: block and offset in it, `[tokens]` each."""

    blocks: torch.Tensor
    offsets: torch.Tensor


def kv_order(geometry: KvGeometry, block_size: int, dtype: torch.dtype, device: torch.device) -> KvOrder:
    """Return the order of a cache, a function of device and shape alone so that like workers agree."""
    tiled = device.type == "cpu" and block_size == TILED_BLOCK_SIZE and dtype in (torch.float32, torch.bfloat16)
    return KvOrder.TILED if tiled and geometry.key_dim % _pair(dtype) == 0 else KvOrder.PLAIN


def _pair(dtype: torch.dtype) -> int:
    """Return the number of values in 4 bytes."""
    return 4 // dtype.itemsize


class PagedKvCache:
    """Keys and values by layer and block; implements `spotwise.mesh.ports.ports.KvMemory`.

    Other threads may export and import while the model runs: import into blocks that the running iteration does not use,
    export those and layers that it has written.

    Attributes:
        geometry: KV of the whole model.
        part: layers and heads that this cache keeps.
        num_blocks: blocks that sequences may own.
        blocks_per_head: `num_blocks` plus the scratch block, if any: the stride, in blocks, between heads.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        scratch: bool = False,
        order: KvOrder | None = None,
        part: KvPart | None = None,
    ) -> None:
        """Allocate the cache, zeroed.

        Args:
            geometry: the model's KV, all layers and heads.
            num_blocks: blocks that sequences may own.
            block_size: tokens of a block.
            dtype: number format of keys and values.
            device: holds them.
            scratch: add a block that no sequence owns.
            order: order of positions within a block; by default `kv_order`.
            part: what to keep of it; by default all.
        """
        self.geometry = geometry
        self.part = part or KvPart.whole(geometry.num_layers, geometry.kv_heads)
        self.num_blocks = num_blocks
        self.blocks_per_head = num_blocks + scratch
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self.order = order or kv_order(geometry, block_size, dtype, device)
        #: of the part: `[layers, kv_heads, blocks_per_head, block_size, key_dim]`, the last two in the cache's order
        self.keys = self._allocate(geometry.key_dim)
        #: of the part: `[layers, kv_heads, blocks_per_head, block_size, value_dim]`, the last two in the cache's order
        self.values = self._allocate(geometry.value_dim)
        self._written: list[torch.cuda.Event | None] = [None] * geometry.num_layers
        self._host_rows = HostKvRows(self.keys, self.values) if device.type == "cpu" else None

    def _allocate(self, dim: int) -> torch.Tensor:
        layers, heads = self.part.layers, self.part.kv_heads
        blocks = (self.blocks_per_head, self.block_size, dim)
        if self.device.type != "cpu":
            return torch.zeros((len(layers), len(heads), *blocks), dtype=self.dtype, device=self.device)
        whole = reserved_zeros((self.geometry.num_layers, self.geometry.kv_heads, *blocks), self.dtype)
        return whole[layers.start : layers.stop, heads.start : heads.stop]

    @property
    def scratch_block(self) -> int | None:
        """The block that no sequence owns; `None` where there is none."""
        return self.num_blocks if self.blocks_per_head > self.num_blocks else None

    @property
    def num_layers(self) -> int:
        """Layers kept."""
        return len(self.part.layers)

    @property
    def kv_heads(self) -> int:
        """KV heads kept of each layer."""
        return len(self.part.kv_heads)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one kept layer, K and V together, of the kept heads."""
        return self.bytes_of_heads(self.kv_heads)

    @property
    def layout(self) -> str:
        """Layout of a block's bytes; caches with equal layouts can exchange blocks."""
        geometry = self.geometry
        return (
            f"{geometry.num_layers} layers of {geometry.kv_heads} x {geometry.key_dim}+{geometry.value_dim} "
            f"{str(self.dtype).removeprefix('torch.')}, blocks of {self.block_size}, {self.order}"
        )

    def layer_keys(self, layer: int) -> torch.Tensor:
        """Return the keys of a kept layer, by its index in the model: `[kv_heads, blocks_per_head, ...]`, contiguous."""
        return self.keys[layer - self.part.layers.start]

    def layer_values(self, layer: int) -> torch.Tensor:
        """Return the values of a kept layer, as `layer_keys`."""
        return self.values[layer - self.part.layers.start]

    def write(self, layer: int, places: KvPlaces, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write new positions: keys `[kv_heads, tokens, key_dim]`, values `[kv_heads, tokens, value_dim]`."""
        if self.order is KvOrder.PLAIN:
            self.layer_keys(layer)[:, places.blocks, places.offsets] = keys
            self.layer_values(layer)[:, places.blocks, places.offsets] = values
            return
        pair = _pair(self.dtype)
        tokens = keys.shape[1]
        tiled_keys = self.layer_keys(layer).view(self.kv_heads, self.blocks_per_head, -1, self.block_size, pair)
        tiled_keys[:, places.blocks, :, places.offsets] = keys.transpose(0, 1).reshape(tokens, len(keys), -1, pair)
        tiled_values = self.layer_values(layer).view(
            self.kv_heads, self.blocks_per_head, self.block_size // pair, -1, pair
        )
        outer, inner = places.offsets // pair, places.offsets % pair
        tiled_values[:, places.blocks, outer, :, inner] = values.transpose(0, 1)

    def clear_not_finite(self, block_ids: Rows[int]) -> None:
        """Make zeros of what is NaN or infinite in these blocks: their next owner multiplies what it does not use by zero."""
        index = torch.tensor(block_ids, dtype=torch.int64, device=self.keys.device)
        for tensor in (self.keys, self.values):
            tensor[:, :, index] = tensor[:, :, index].nan_to_num(0.0, 0.0, 0.0)

    def note_written(self, layer: int) -> None:
        """Note that a layer's new positions are written; on a GPU, by the work queued so far."""
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self._written[layer] = event

    def written_event(self, layer: int) -> torch.cuda.Event | None:
        """Return the event that a GPU's copy of a layer must wait for; `None`: it need not wait."""
        return self._written[layer]

    def gather(self, layer: int, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys `[blocks * block_size, key_dim]` and values of blocks indexed by `kv_head * blocks_per_head + block`."""
        keys = self.layer_keys(layer).view(-1, self.block_size * self.geometry.key_dim).index_select(0, index)
        values = self.layer_values(layer).view(-1, self.block_size * self.geometry.value_dim).index_select(0, index)
        if self.order is KvOrder.TILED:
            pair = _pair(self.dtype)
            keys = keys.view(len(index), -1, self.block_size, pair).transpose(1, 2)
            values = values.view(len(index), self.block_size // pair, -1, pair).transpose(2, 3)
        return keys.reshape(-1, self.geometry.key_dim), values.reshape(-1, self.geometry.value_dim)

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Copy blocks of kept layers, `first_layer` counted from the first of these, to a flat array of
        `num_layers * len(block_ids) * layer_block_bytes` bytes, `into` if given.

        Raises:
            ValueError: a layer or a block is not in this cache, or `into` has another size.
        """
        return self.export(self.part.layers_of(first_layer, num_layers), block_ids, into)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Copy blocks in: the inverse of `export_layers`.

        Raises:
            ValueError: `data` has another size than the arguments require, or a layer or block is not in this cache.
        """
        self.take(self.part.layers_of(first_layer, num_layers), block_ids, data)

    def section(self, part: KvPart) -> CacheSection:
        """Return some of the kept layers and heads, as a memory of its own; raises `ValueError` where not all are kept."""
        self._check(part, ())
        return CacheSection(self, part)

    def export(
        self, part: KvPart, block_ids: tuple[int, ...], into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Copy a part of blocks to a flat array in host memory, `into` if given; raises as `gather_blocks`."""
        place = torch.from_numpy(into) if into is not None and self.device.type == "cpu" else None
        data: NDArray[np.uint8] = self.gather_blocks(part, block_ids, place).cpu().numpy()
        return data

    def take(self, part: KvPart, block_ids: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        """Copy a part of blocks in: the inverse of `export`; raises as `scatter_blocks`."""
        flat = np.ascontiguousarray(data).reshape(-1)
        if not flat.flags.writeable or flat.ctypes.data % self.dtype.itemsize:
            flat = flat.copy()  # torch accepts neither read-only nor unaligned memory
        self.scatter_blocks(part, block_ids, torch.from_numpy(flat).to(self.device))

    @torch.inference_mode()
    def gather_blocks(self, part: KvPart, block_ids: tuple[int, ...], into: torch.Tensor | None = None) -> torch.Tensor:
        """Copy a part of blocks to a flat byte tensor on the cache's device, `into` if given, on the current stream.

        The bytes are ordered by layer: first its keys `[kv_head, block]`, each block in the cache's order, then its values.

        Raises:
            ValueError: a layer or a block is not in this cache, or `into` has another size.
        """
        self._check(part, block_ids)
        num_bytes = len(part.layers) * len(block_ids) * self.bytes_of_heads(len(part.kv_heads))
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self.device) if into is None else into
        if data.numel() != num_bytes:
            raise ValueError(f"{num_bytes} bytes of KV do not go into {data.numel()}")
        if self._host_rows is not None:
            self._host_rows.gather(*self._kept(part), block_ids, data.numpy())
            return data
        block_index = torch.tensor(block_ids, dtype=torch.int64, device=self.device)
        for source, place in self._layer_views(part, len(block_ids), data):
            torch.index_select(source, 1, block_index, out=place)
        return data

    @torch.inference_mode()
    def scatter_blocks(self, part: KvPart, block_ids: tuple[int, ...], data: torch.Tensor) -> None:
        """Copy a part of blocks from a flat byte tensor on the cache's device, on the current stream; see `gather_blocks`.

        Raises:
            ValueError: `data` has another size than the arguments require, or a layer or block is not in this cache.
        """
        self._check(part, block_ids)
        expected_bytes = len(part.layers) * len(block_ids) * self.bytes_of_heads(len(part.kv_heads))
        if data.dtype != torch.uint8 or data.numel() != expected_bytes:
            raise ValueError(f"{expected_bytes} bytes of KV expected, {data.nbytes} given")
        if self._host_rows is not None:
            self._host_rows.scatter(*self._kept(part), block_ids, data.numpy())
            return
        block_index = torch.tensor(block_ids, dtype=torch.int64, device=self.device)
        for destination, place in self._layer_views(part, len(block_ids), data):
            destination.index_copy_(1, block_index, place)

    def bytes_of_heads(self, heads: int) -> int:
        """Return the bytes of one block in one layer, K and V together, of some heads."""
        return heads * self.block_size * (self.geometry.key_dim + self.geometry.value_dim) * self.dtype.itemsize

    def _kept(self, part: KvPart) -> tuple[slice, slice]:
        """Return where the layers and heads of a part are in `keys` and `values`."""
        layers, heads = self.part.layers.start, self.part.kv_heads.start
        return (
            slice(part.layers.start - layers, part.layers.stop - layers),
            slice(part.kv_heads.start - heads, part.kv_heads.stop - heads),
        )

    def _check(self, part: KvPart, block_ids: tuple[int, ...]) -> None:
        if not self.part.has(part):
            raise ValueError(f"{part} of a cache with {self.part}")
        if block_ids and not (min(block_ids) >= 0 and max(block_ids) < self.num_blocks):
            raise ValueError(f"a block id outside 0..{self.num_blocks - 1}")

    def _layer_views(
        self, part: KvPart, num_blocks: int, data: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pair each layer's keys and values with their place in the flat bytes."""
        if num_blocks == 0:
            return []
        pairs = []
        offset = 0
        _, heads = self._kept(part)
        for layer in part.layers:
            for cache in (self.layer_keys(layer)[heads], self.layer_values(layer)[heads]):
                shape = (len(cache), num_blocks, *cache.shape[2:])
                size = math.prod(shape) * self.dtype.itemsize
                pairs.append((cache, data[offset : offset + size].view(self.dtype).view(shape)))
                offset += size
        return pairs


class CacheSection:
    """Some layers and heads of a cache in host memory; implements `spotwise.mesh.ports.ports.KvSection`."""

    def __init__(self, cache: PagedKvCache, part: KvPart) -> None:
        self._cache = cache
        self._part = part

    @property
    def num_layers(self) -> int:
        """Layers of the section."""
        return len(self._part.layers)

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer, K and V together, of the section's heads."""
        return self._cache.bytes_of_heads(len(self._part.kv_heads))

    def export_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """See `PagedKvCache.export_layers`; layers are counted from the section's first."""
        return self._cache.export(self._part.layers_of(first_layer, num_layers), block_ids, into)

    def import_layers(
        self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]
    ) -> None:
        """Copy blocks in: the inverse of `export_layers`."""
        self._cache.take(self._part.layers_of(first_layer, num_layers), block_ids, data)
