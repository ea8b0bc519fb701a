"""A cache's bytes as the transfer gets them on a GPU; here on a CPU, where every tensor is on the host. See tests/cuda."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.engine.kv.device import DeviceKv, word_sum

GEOMETRY = KvGeometry(num_layers=3, kv_heads=1, key_dim=3, value_dim=2)


def filled(seed: int) -> PagedKvCache:
    """Return a filled cache whose blocks are not a whole number of words."""
    cache = PagedKvCache(GEOMETRY, 10, 3, torch.bfloat16, torch.device("cpu"), scratch=True)
    generator = torch.Generator().manual_seed(seed)
    cache.keys.copy_(torch.randn(cache.keys.shape, generator=generator))
    cache.values.copy_(torch.randn(cache.values.shape, generator=generator))
    return cache


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_blocks_travel_bit_for_bit(direct: bool) -> None:
    """Through a buffer that is longer than the payload, as the transfer's are; and with the checksum that they left with."""
    source, target = filled(0), filled(1)
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
    """A staged cache exports the same bytes and checksum as a cache in host memory, so the two can exchange payloads."""
    cache = filled(0)
    staged = DeviceKv(cache, direct=False)
    payload = staged.export_layers(0, 3, (1, 2))
    assert np.array_equal(payload, cache.export_layers(0, 3, (1, 2)))
    assert staged.checksum(payload) == xxhash.xxh3_64_intdigest(payload.data)
    assert staged.layout == cache.layout
    assert staged.num_layers == 3


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_blocks_are_copied_into_memory_that_was_allocated_before(direct: bool) -> None:
    """Used again for other blocks; its size must be right."""
    kv = DeviceKv(filled(0), direct=direct)
    into = kv.allocate(2 * 3 * kv.layer_block_bytes)
    for blocks in ((7, 0, 3), (1, 2, 4)):
        payload = kv.export_layers(1, 2, blocks, into)
        assert type(payload) is type(into)
        assert kv.checksum(payload) == kv.checksum(into) == kv.checksum(kv.export_layers(1, 2, blocks))
    with pytest.raises(ValueError, match="do not go into"):
        kv.export_layers(0, 3, (7, 0, 3), into)


def test_payloads_that_are_checked_differently_are_not_exchanged() -> None:
    """Direct and staged caches have different layouts, so that they do not exchange payloads."""
    cache = filled(0)
    assert DeviceKv(cache, direct=True).layout not in (cache.layout, DeviceKv(cache, direct=False).layout)


@pytest.mark.parametrize("direct", [True, False])
def test_what_does_not_fit_is_refused(direct: bool) -> None:
    """Wrong sizes, wrong layers, and blocks that no sequence may own are refused."""
    kv = DeviceKv(filled(0), direct=direct)
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
