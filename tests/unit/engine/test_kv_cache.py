from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch

from spotwise.engine.kv.cache import KvGeometry, KvOrder, KvPlaces, PagedKvCache

GEOMETRY = KvGeometry(num_layers=3, kv_heads=2, key_dim=8, value_dim=6)


def filled(dtype: torch.dtype, seed: int = 0) -> PagedKvCache:
    cache = PagedKvCache(GEOMETRY, num_blocks=10, block_size=4, dtype=dtype, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    cache.keys.copy_(torch.randn(cache.keys.shape, generator=generator))
    cache.values.copy_(torch.randn(cache.values.shape, generator=generator))
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_travel_bit_for_bit_and_touch_nothing_else(dtype: torch.dtype) -> None:
    """Exported blocks arrive in others, by layer or all at once, and all other blocks keep their contents."""
    source, target = filled(dtype), filled(dtype, seed=1)
    before_keys, before_values = target.keys.clone(), target.values.clone()
    there, here = (7, 0, 3), (2, 9, 4)
    target.import_layers(0, 1, here, source.export_layers(0, 1, there))
    target.import_layers(1, 2, here, source.export_layers(1, 2, there))
    assert torch.equal(target.keys[:, :, list(here)], source.keys[:, :, list(there)])
    assert torch.equal(target.values[:, :, list(here)], source.values[:, :, list(there)])
    others = [block for block in range(10) if block not in here]
    assert torch.equal(target.keys[:, :, others], before_keys[:, :, others])
    assert torch.equal(target.values[:, :, others], before_values[:, :, others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_export_has_the_size_it_promises(dtype: torch.dtype) -> None:
    """`layers * blocks * layer_block_bytes`, flat and contiguous; no blocks are no bytes."""
    cache = filled(dtype)
    data = cache.export_layers(1, 2, (1, 5))
    assert cache.layer_block_bytes == 2 * 4 * (8 + 6) * dtype.itemsize
    assert data.dtype == np.uint8 and data.shape == (2 * 2 * cache.layer_block_bytes,) and data.flags.c_contiguous
    assert cache.export_layers(0, 3, ()).size == 0


def test_read_only_and_unaligned_bytes_are_taken() -> None:
    """Bytes as a network delivers them: at any address, not ours to write."""
    source, target = filled(torch.float32), filled(torch.float32, seed=1)
    data = np.frombuffer(b"x" + source.export_layers(0, 3, (6,)).tobytes(), dtype=np.uint8)[1:]
    target.import_layers(0, 3, (1,), data)
    assert torch.equal(target.keys[:, :, 1], source.keys[:, :, 6])


def test_what_does_not_fit_is_refused() -> None:
    cache = filled(torch.float32)
    before = cache.keys.clone()
    data = cache.export_layers(0, 1, (1, 2))
    for arguments in [(0, 1, (1,), data), (0, 1, (1, 10), data), (0, 1, (-1, 2), data), (3, 1, (1, 2), data)]:
        with pytest.raises(ValueError):
            cache.import_layers(*arguments)
    with pytest.raises(ValueError, match="layers"):
        cache.export_layers(2, 2, (1,))
    assert torch.equal(cache.keys, before)


@pytest.mark.parametrize(("block_size", "order"), [(16, KvOrder.TILED), (4, KvOrder.PLAIN)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_gathered_here_and_where_it_was_sent(
    dtype: torch.dtype, block_size: int, order: KvOrder
) -> None:
    """Positions in shuffled blocks come back in their order, from this cache and from one that imported the blocks."""
    source, target = (PagedKvCache(GEOMETRY, 10, block_size, dtype, torch.device("cpu")) for _ in range(2))
    assert source.order is order
    table, there = (7, 0, 3), (2, 9, 4)
    generator = torch.Generator().manual_seed(0)
    tokens = 3 * block_size - 1
    keys = torch.randn(GEOMETRY.kv_heads, tokens, GEOMETRY.key_dim, generator=generator).to(dtype)
    values = torch.randn(GEOMETRY.kv_heads, tokens, GEOMETRY.value_dim, generator=generator).to(dtype)
    at = torch.arange(tokens)
    for positions in (at[: tokens // 2], at[tokens // 2 :]):
        places = KvPlaces(torch.tensor(table)[positions // block_size], positions % block_size)
        source.write(1, places, keys[:, positions], values[:, positions])
    target.import_layers(0, 3, there, source.export_layers(0, 3, table))
    for cache, blocks in ((source, table), (target, there)):
        for head in range(GEOMETRY.kv_heads):
            got_keys, got_values = cache.gather(1, head * cache.num_blocks + torch.tensor(blocks))
            assert torch.equal(got_keys[:tokens], keys[head]) and torch.equal(got_values[:tokens], values[head])
            assert not got_keys[tokens:].any() and not got_values[tokens:].any()
    assert not source.keys[[0, 2]].any() and not source.values[[0, 2]].any()


def test_a_layout_distinguishes_everything_that_changes_the_meaning_of_bytes() -> None:
    """Order, number format, block size and shape; not how many blocks there are."""
    cpu, elsewhere = torch.device("cpu"), torch.device("meta")
    layouts = [
        PagedKvCache(geometry, 2, block_size, dtype, device).layout
        for geometry, block_size, dtype, device in (
            (GEOMETRY, 16, torch.float32, cpu),
            (GEOMETRY, 16, torch.float32, elsewhere),
            (GEOMETRY, 16, torch.bfloat16, cpu),
            (GEOMETRY, 16, torch.float16, cpu),
            (GEOMETRY, 8, torch.float32, cpu),
            (KvGeometry(3, 2, 6, 8), 16, torch.float32, cpu),
            (KvGeometry(3, 1, 16, 12), 16, torch.float32, cpu),
            (KvGeometry(2, 2, 8, 6), 16, torch.float32, cpu),
        )
    ]
    assert len(set(layouts)) == len(layouts)
    assert PagedKvCache(GEOMETRY, 5, 16, torch.float32, cpu).layout == layouts[0]


def test_memory_is_committed_when_it_is_used() -> None:
    """A cache of 1 GiB that holds one block takes next to nothing."""
    before = psutil.Process().memory_info().rss
    geometry = KvGeometry(num_layers=4, kv_heads=2, key_dim=64, value_dim=64)
    cache = PagedKvCache(geometry, 16384, 16, torch.float32, torch.device("cpu"))
    cache.keys[:, :, 0] = 1.0
    assert cache.keys.nbytes + cache.values.nbytes == 1 << 30
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert float(cache.values[2, 1, 9000].abs().max()) == 0.0


def test_blocks_are_copied_into_memory_that_is_given() -> None:
    """Layers are exported into a given buffer of the right size, which is returned."""
    cache = filled(torch.bfloat16)
    expected = cache.export_layers(1, 2, (1, 5))
    into = np.zeros(expected.nbytes, np.uint8)
    assert np.shares_memory(cache.export_layers(1, 2, (1, 5), into), into)
    assert np.array_equal(into, expected)
    with pytest.raises(ValueError, match="do not go into"):
        cache.export_layers(1, 2, (1, 5), into[:-1])
