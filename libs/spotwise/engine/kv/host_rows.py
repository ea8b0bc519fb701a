"""Copies blocks of a KV cache in host memory with numpy.

A block of one head is one row of machine words; torch's `index_select` and `index_copy_` take three to six times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_WORDS = (np.int64, np.int32, np.int16, np.uint8)


class HostKvRows:
    """Copies blocks of keys and values, both `[num_layers, kv_heads, blocks, ...]`, each layer contiguous.

    The flat bytes have the order of `PagedKvCache.gather_blocks`: by layer, first its keys `[kv_head, block]`, then its values.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._layers = [(_rows(own_keys), _rows(own_values)) for own_keys, own_values in zip(keys, values, strict=True)]

    def gather(self, layers: slice, heads: slice, block_ids: tuple[int, ...], into: NDArray[np.uint8]) -> None:
        """Copy blocks out; the caller has checked that they exist and that `into` has their size."""
        index = np.array(block_ids, np.intp)
        for rows, place in self._with_places(layers, heads, len(index), into):
            rows.take(index, axis=1, out=place, mode="clip")  # other modes buffer `out`

    def scatter(self, layers: slice, heads: slice, block_ids: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        """Copy blocks in; the inverse of `gather`."""
        index = np.array(block_ids, np.intp)
        for rows, place in self._with_places(layers, heads, len(index), data):
            for own, given in zip(rows, place, strict=True):
                own[index] = given

    def _with_places(
        self, layers: slice, heads: slice, num_blocks: int, data: NDArray[np.uint8]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Pair the rows of each layer's keys and values with their place in the flat bytes."""
        offset = 0
        for layer in self._layers[layers]:
            for whole in layer:
                rows = whole[heads]
                num_heads, _, words = rows.shape
                end = offset + num_heads * num_blocks * words * rows.itemsize
                yield rows, data[offset:end].view(rows.dtype).reshape(num_heads, num_blocks, words)
                offset = end


def _rows(blocks: torch.Tensor) -> NDArray[Any]:
    """Return one layer as `[kv_heads, blocks, words]`, in the largest word that divides a block."""
    flat: NDArray[np.uint8] = blocks.view(*blocks.shape[:2], -1).view(torch.uint8).numpy()
    return flat.view(next(word for word in _WORDS if flat.shape[-1] % np.dtype(word).itemsize == 0))
