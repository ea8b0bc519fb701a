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
    """A view of keys and values, both `[num_layers, kv_heads, blocks, ...]` and contiguous, that copies blocks.

    Flat bytes are as `PagedKvCache.gather_blocks` has them: layer after layer; in a layer first the keys `[kv_head, block]`,
    then the values.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._layers = [(_rows(own_keys), _rows(own_values)) for own_keys, own_values in zip(keys, values, strict=True)]

    def gather(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], into: NDArray[np.uint8]) -> None:
        """Copy blocks out; all of them exist, and `into` has their size."""
        index = np.array(block_ids, np.intp)
        for rows, place in self._with_places(first_layer, num_layers, len(index), into):
            rows.take(index, axis=1, out=place, mode="clip")  # the mode that writes `out` without a copy between

    def scatter(self, first_layer: int, num_layers: int, block_ids: tuple[int, ...], data: NDArray[np.uint8]) -> None:
        """Copy blocks in; the inverse of `gather`."""
        index = np.array(block_ids, np.intp)
        for rows, place in self._with_places(first_layer, num_layers, len(index), data):
            for own, given in zip(rows, place, strict=True):
                own[index] = given

    def _with_places(
        self, first_layer: int, num_layers: int, num_blocks: int, data: NDArray[np.uint8]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Pair the rows of each layer's keys and values with their place in the flat bytes."""
        offset = 0
        for layer in self._layers[first_layer : first_layer + num_layers]:
            for rows in layer:
                heads, _, words = rows.shape
                end = offset + heads * num_blocks * words * rows.itemsize
                yield rows, data[offset:end].view(rows.dtype).reshape(heads, num_blocks, words)
                offset = end


def _rows(blocks: torch.Tensor) -> NDArray[Any]:
    """Return `[kv_heads, blocks, words]` of one layer, in the largest words that a block is made of."""
    flat: NDArray[np.uint8] = blocks.view(*blocks.shape[:2], -1).view(torch.uint8).numpy()
    return flat.view(next(word for word in _WORDS if flat.shape[-1] % np.dtype(word).itemsize == 0))
