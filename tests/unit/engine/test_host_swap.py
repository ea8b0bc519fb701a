"""KV that goes to the host's memory and comes back."""

from __future__ import annotations

import psutil
import pytest
import torch

from spotwise.engine.kv import host_swap
from spotwise.engine.kv.cache import KvGeometry, KvOrder, PagedKvCache
from spotwise.engine.kv.host_swap import HostSwap

GEOMETRY = KvGeometry(num_layers=3, kv_heads=2, key_dim=8, value_dim=6)
BLOCKS, HOST_BLOCKS = 12, 20


def filled(dtype: torch.dtype, block_size: int = 16, seed: int = 0) -> PagedKvCache:
    cache = PagedKvCache(GEOMETRY, BLOCKS, block_size, dtype, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for half in (cache.keys, cache.values):
        half.copy_(torch.randn(half.shape, generator=generator))
    return cache


@pytest.mark.parametrize(("block_size", "order"), [(16, KvOrder.TILED), (5, KvOrder.PLAIN)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_what_comes_back_is_what_went(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, block_size: int, order: KvOrder, at_once: int
) -> None:
    """Bit for bit, into other blocks than it came from, however many a buffer holds; all other blocks keep theirs."""
    cache = filled(dtype, block_size)
    assert cache.order is (KvOrder.PLAIN if dtype is torch.float16 else order)
    monkeypatch.setattr(host_swap, "_BUFFER_BYTES", at_once * GEOMETRY.num_layers * cache.layer_block_bytes)
    swap = HostSwap(cache, HOST_BLOCKS)
    keys, values = cache.keys.clone(), cache.values.clone()
    first, second, at_first, at_second = (7, 0, 3, 11, 4), (1, 2), (19, 0, 5, 6, 1), (2, 18)
    swap.swap_out(first, at_first)
    swap.swap_out(second, at_second)
    for half in (cache.keys, cache.values):
        half[:, :, [*first, *second]] = 0
    here = (3, 2, 1, 0, 7)
    swap.swap_in(at_first, here)
    assert torch.equal(cache.keys[:, :, list(here)], keys[:, :, list(first)])
    assert torch.equal(cache.values[:, :, list(here)], values[:, :, list(first)])
    swap.swap_in(at_second, (4, 11))
    assert torch.equal(cache.keys[:, :, [4, 11]], keys[:, :, list(second)])
    others = [block for block in range(BLOCKS) if block not in (*here, 4, 11)]
    assert torch.equal(cache.keys[:, :, others], keys[:, :, others])
    assert torch.equal(cache.values[:, :, others], values[:, :, others])


def test_what_was_kept_can_be_had_more_than_once() -> None:
    """The host still has what came back: a prefix that several share."""
    cache = filled(torch.float32)
    swap = HostSwap(cache, HOST_BLOCKS)
    keys = cache.keys.clone()
    swap.swap_out((5,), (9,))
    swap.swap_in((9,), (1,))
    swap.swap_in((9,), (2,))
    assert torch.equal(cache.keys[:, :, 1], keys[:, :, 5]) and torch.equal(cache.keys[:, :, 2], keys[:, :, 5])


def test_nothing_moves_where_nothing_is_to_move() -> None:
    """A swap without blocks leaves the cache as it was."""
    cache = filled(torch.float32)
    before = cache.keys.clone()
    swap = HostSwap(cache, HOST_BLOCKS)
    swap.swap_out((), ())
    swap.swap_in((), ())
    assert torch.equal(cache.keys, before)


@pytest.mark.parametrize(
    ("device", "host", "words"),
    [
        ((1, 2), (3,), "2 blocks do not go into 1"),
        ((1, BLOCKS), (1, 2), "block id"),
        ((1, 2), (HOST_BLOCKS, 1), "block id"),
        ((-1,), (1,), "block id"),
        ((1,), (-1,), "block id"),
    ],
)
def test_blocks_that_do_not_exist_are_refused(device: tuple[int, ...], host: tuple[int, ...], words: str) -> None:
    """Unknown blocks are refused on either side and in either direction, and the next move is unaffected."""
    cache = filled(torch.float32)
    swap = HostSwap(cache, HOST_BLOCKS)
    keys = cache.keys.clone()
    with pytest.raises(ValueError, match=words):
        swap.swap_out(device, host)
    with pytest.raises(ValueError, match=words.replace("2 blocks do not go into 1", "1 blocks do not go into 2")):
        swap.swap_in(host, device)
    swap.swap_out((6,), (0,))
    swap.swap_in((0,), (8,))
    assert torch.equal(cache.keys[:, :, 8], keys[:, :, 6])


def test_as_many_blocks_as_fit_a_budget() -> None:
    cache = filled(torch.float32)
    block_bytes = GEOMETRY.num_layers * cache.layer_block_bytes
    assert HostSwap.within(cache, 3 * block_bytes - 1).num_blocks == 2
    with pytest.raises(ValueError, match=f"kv_host_bytes is {block_bytes - 1}; one block of this model takes"):
        HostSwap.within(cache, block_bytes - 1)


def test_memory_is_committed_as_blocks_are_written() -> None:
    """A budget of gigabytes costs nothing until it is used."""
    geometry = KvGeometry(num_layers=4, kv_heads=4, key_dim=64, value_dim=64)
    cache = PagedKvCache(geometry, 64, 16, torch.float32, torch.device("cpu"))
    process = psutil.Process()
    before = process.memory_info().rss
    swap = HostSwap.within(cache, 4 << 30)
    swap.swap_out(tuple(range(8)), tuple(range(8)))
    assert process.memory_info().rss - before < 256 << 20
