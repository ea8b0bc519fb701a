"""Blocks copied by numpy, against torch's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spotwise.engine.kv.host_rows import HostKvRows

LAYERS, HEADS, BLOCKS, BLOCK_SIZE = 3, 2, 7, 4


@pytest.mark.parametrize(
    ("dtype", "key_dim", "value_dim"),
    [(torch.bfloat16, 8, 4), (torch.float32, 1, 3), (torch.uint8, 1, 5), (torch.uint8, 16, 1)],
)
def test_blocks_are_copied_in_any_order_and_size(dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    """Out as torch indexes them, keys before values, layer after layer; and in to the same places of another cache."""
    keys = torch.arange(LAYERS * HEADS * BLOCKS * BLOCK_SIZE * key_dim).to(dtype)
    keys = keys.view(LAYERS, HEADS, BLOCKS, BLOCK_SIZE, key_dim)
    values = (torch.arange(LAYERS * HEADS * BLOCKS * BLOCK_SIZE * value_dim) + 3).to(dtype)
    values = values.view(LAYERS, HEADS, BLOCKS, BLOCK_SIZE, value_dim)
    there, here = (5, 0, 3), (1, 6, 2)
    picked = [cache[layer][:, list(there)] for layer in (1, 2) for cache in (keys, values)]
    expected = torch.cat([part.reshape(-1).view(torch.uint8) for part in picked]).numpy()
    data = np.zeros(len(expected), np.uint8)
    HostKvRows(keys, values).gather(slice(1, 3), slice(None), there, data)
    assert np.array_equal(data, expected)

    new_keys, new_values = torch.zeros_like(keys), torch.zeros_like(values)
    HostKvRows(new_keys, new_values).scatter(slice(1, 3), slice(None), here, data)
    for own, new in ((keys, new_keys), (values, new_values)):
        assert torch.equal(new[1:, :, list(here)], own[1:, :, list(there)])
        untouched = [block for block in range(BLOCKS) if block not in here]
        assert not new[0].any()
        assert not new[:, :, untouched].any()


def test_bytes_at_an_odd_address_are_copied_too() -> None:
    """Buffers of others are not always aligned to a word."""
    keys = torch.arange(2 * 4 * 8, dtype=torch.int16).view(1, 2, 4, 1, 8).view(torch.bfloat16)
    rows = HostKvRows(keys, keys.clone())
    room = np.zeros(2 * 2 * 2 * 16 + 1, np.uint8)
    aligned = np.zeros(2 * 2 * 2 * 16, np.uint8)
    rows.gather(slice(0, 1), slice(None), (2, 1), room[1:])
    rows.gather(slice(0, 1), slice(None), (2, 1), aligned)
    assert aligned.any()
    assert np.array_equal(room[1:], aligned)
    rows.scatter(slice(0, 1), slice(None), (2, 1), room[1:])
    rows.gather(slice(0, 1), slice(None), (2, 1), aligned)
    assert np.array_equal(room[1:], aligned)
