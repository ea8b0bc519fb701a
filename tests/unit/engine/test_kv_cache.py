"""Bytes of a KV cache: exported, imported, gathered, on a device (here a CPU; see tests/cuda), and in host memory."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from spotwise.engine.kv import host_swap
from spotwise.engine.kv.cache import KvGeometry, KvOrder, KvPlaces, PagedKvCache
from spotwise.engine.kv.device import DeviceKv, word_sum
from spotwise.engine.kv.host_rows import HostKvRows
from spotwise.engine.kv.host_swap import HostSwap

GEOMETRY = KvGeometry(num_layers=3, kv_heads=2, key_dim=8, value_dim=6)


def filled(dtype: torch.dtype, seed: int = 0) -> PagedKvCache:
    cache = PagedKvCache(GEOMETRY, num_blocks=10, block_size=4, dtype=dtype, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    cache.keys.copy_(torch.randn(cache.keys.shape, generator=generator))
    cache.values.copy_(torch.randn(cache.values.shape, generator=generator))
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_travel_bit_for_bit_and_touch_nothing_else(dtype: torch.dtype) -> None:
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
    before = psutil.Process().memory_info().rss
    geometry = KvGeometry(num_layers=4, kv_heads=2, key_dim=64, value_dim=64)
    cache = PagedKvCache(geometry, 16384, 16, torch.float32, torch.device("cpu"))
    cache.keys[:, :, 0] = 1.0
    assert cache.keys.nbytes + cache.values.nbytes == 1 << 30
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert float(cache.values[2, 1, 9000].abs().max()) == 0.0


def test_blocks_are_copied_into_memory_that_is_given() -> None:
    cache = filled(torch.bfloat16)
    expected = cache.export_layers(1, 2, (1, 5))
    into = np.zeros(expected.nbytes, np.uint8)
    assert np.shares_memory(cache.export_layers(1, 2, (1, 5), into), into)
    assert np.array_equal(into, expected)
    with pytest.raises(ValueError, match="do not go into"):
        cache.export_layers(1, 2, (1, 5), into[:-1])


LAYERS, HEADS, ROWS_BLOCKS, SIZE = 3, 2, 7, 4


@pytest.mark.parametrize(
    ("dtype", "key_dim", "value_dim"),
    [(torch.bfloat16, 8, 4), (torch.float32, 1, 3), (torch.uint8, 1, 5), (torch.uint8, 16, 1)],
)
def test_blocks_are_copied_in_any_order_and_size(dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    """Out as torch indexes them, keys before values, layer after layer; and in to the same places of another cache."""
    keys = torch.arange(LAYERS * HEADS * ROWS_BLOCKS * SIZE * key_dim).to(dtype)
    keys = keys.view(LAYERS, HEADS, ROWS_BLOCKS, SIZE, key_dim)
    values = (torch.arange(LAYERS * HEADS * ROWS_BLOCKS * SIZE * value_dim) + 3).to(dtype)
    values = values.view(LAYERS, HEADS, ROWS_BLOCKS, SIZE, value_dim)
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
        untouched = [block for block in range(ROWS_BLOCKS) if block not in here]
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


UNEVEN = KvGeometry(num_layers=3, kv_heads=1, key_dim=3, value_dim=2)


def filled_unevenly(seed: int) -> PagedKvCache:
    """Return a filled cache whose blocks are not a whole number of words."""
    cache = PagedKvCache(UNEVEN, 10, 3, torch.bfloat16, torch.device("cpu"), scratch=True)
    generator = torch.Generator().manual_seed(seed)
    cache.keys.copy_(torch.randn(cache.keys.shape, generator=generator))
    cache.values.copy_(torch.randn(cache.values.shape, generator=generator))
    return cache


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_blocks_travel_through_a_device_bit_for_bit(direct: bool) -> None:
    """Through a buffer that is longer than the payload, as the transfer's are; and with the checksum that they left with."""
    source, target = filled_unevenly(0), filled_unevenly(1)
    sender, receiver = DeviceKv(source, direct=direct), DeviceKv(target, direct=direct)
    there, here = (7, 0, 3), (2, 9, 4)
    before = target.keys.clone()
    payload = sender.export_layers(1, 2, there)
    assert payload.nbytes == 2 * 3 * sender.layer_block_bytes == 2 * 3 * source.layer_block_bytes
    buffer = receiver.allocate(payload.nbytes + 100)
    assert buffer.nbytes == payload.nbytes + 100 and type(buffer) is type(payload)
    buffer[: payload.nbytes] = payload
    arrived = buffer[: payload.nbytes]
    assert receiver.checksum(arrived) == sender.checksum(payload)
    receiver.import_layers(1, 2, here, arrived)
    assert torch.equal(target.keys[1:, :, list(here)], source.keys[1:, :, list(there)])
    assert torch.equal(target.values[1:, :, list(here)], source.values[1:, :, list(there)])
    others = [block for block in range(11) if block not in here]
    assert torch.equal(target.keys[:, :, others], before[:, :, others])


def test_bytes_through_the_host_are_those_of_a_cache_there() -> None:
    cache = filled_unevenly(0)
    staged = DeviceKv(cache, direct=False)
    payload = staged.export_layers(0, 3, (1, 2))
    assert np.array_equal(payload, cache.export_layers(0, 3, (1, 2)))
    assert staged.checksum(payload) == xxhash.xxh3_64_intdigest(payload.data)
    assert staged.layout == cache.layout
    assert staged.num_layers == 3


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_blocks_are_copied_into_memory_that_was_allocated_before(direct: bool) -> None:
    """Used again for other blocks; its size must be right."""
    kv = DeviceKv(filled_unevenly(0), direct=direct)
    into = kv.allocate(2 * 3 * kv.layer_block_bytes)
    for blocks in ((7, 0, 3), (1, 2, 4)):
        payload = kv.export_layers(1, 2, blocks, into)
        assert type(payload) is type(into)
        assert kv.checksum(payload) == kv.checksum(into) == kv.checksum(kv.export_layers(1, 2, blocks))
    with pytest.raises(ValueError, match="do not go into"):
        kv.export_layers(0, 3, (7, 0, 3), into)


def test_payloads_that_are_checked_differently_are_not_exchanged() -> None:
    cache = filled_unevenly(0)
    assert DeviceKv(cache, direct=True).layout not in (cache.layout, DeviceKv(cache, direct=False).layout)


@pytest.mark.parametrize("direct", [True, False])
def test_what_does_not_fit_a_device_is_refused(direct: bool) -> None:
    kv = DeviceKv(filled_unevenly(0), direct=direct)
    payload = kv.export_layers(0, 1, (1, 2))
    for first_layer, block_ids in ((0, (1,)), (0, (1, 10)), (3, (1, 2))):
        with pytest.raises(ValueError):
            kv.import_layers(first_layer, 1, block_ids, payload)
    with pytest.raises(ValueError, match="block id"):
        kv.export_layers(0, 1, (10,))


@given(st.binary(min_size=1, max_size=70), st.data())
def test_a_damaged_word_never_goes_unnoticed(payload: bytes, data: st.DataObject) -> None:
    """Whatever became of it. The sum is the plain definition's."""
    tensor = torch.tensor(list(payload), dtype=torch.uint8)
    total = word_sum(tensor)
    padded = np.frombuffer(payload.ljust(-(-len(payload) // 8) * 8, b"\0"), dtype=np.int64).tolist()
    odd = 0x9E3779B97F4A7C15
    expected = sum(word * ((place * odd) % 2**64 | 1) for place, word in enumerate(padded)) + len(payload)
    assert total == expected % 2**64
    word = data.draw(st.integers(0, (len(payload) - 1) // 8))
    damaged = tensor.clone()
    for at in range(8 * word, min(8 * word + 8, len(payload))):
        damaged[at] = data.draw(st.integers(0, 255))
    assert (word_sum(damaged) == total) == torch.equal(damaged, tensor)


SWAP_GEOMETRY = KvGeometry(num_layers=3, kv_heads=2, key_dim=8, value_dim=6)
BLOCKS, HOST_BLOCKS = 12, 20


def filled_cache(dtype: torch.dtype, block_size: int = 16, seed: int = 0) -> PagedKvCache:
    cache = PagedKvCache(SWAP_GEOMETRY, BLOCKS, block_size, dtype, torch.device("cpu"))
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
    cache = filled_cache(dtype, block_size)
    assert cache.order is (KvOrder.PLAIN if dtype is torch.float16 else order)
    monkeypatch.setattr(host_swap, "_BUFFER_BYTES", at_once * SWAP_GEOMETRY.num_layers * cache.layer_block_bytes)
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
    cache = filled_cache(torch.float32)
    swap = HostSwap(cache, HOST_BLOCKS)
    keys = cache.keys.clone()
    swap.swap_out((5,), (9,))
    swap.swap_in((9,), (1,))
    swap.swap_in((9,), (2,))
    assert torch.equal(cache.keys[:, :, 1], keys[:, :, 5]) and torch.equal(cache.keys[:, :, 2], keys[:, :, 5])


def test_nothing_moves_where_nothing_is_to_move() -> None:
    cache = filled_cache(torch.float32)
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
    cache = filled_cache(torch.float32)
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
    cache = filled_cache(torch.float32)
    block_bytes = SWAP_GEOMETRY.num_layers * cache.layer_block_bytes
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
