"""The tile unit (AMX), real or emulated: the bits of fused multiply-adds in its order, also where tiles are not full."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from spotwise.engine.kv.cache import KvGeometry
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import PackedLinear, PackedWeight
from tests.unit.engine.test_native_attention import LAYERS, Rows
from tests.unit.engine.test_one_order import assert_bits, numbers

#: Few rows, which no tile multiplies; less than a tile, one, two, and some more.
ROWS = (1, 4, 5, 15, 16, 17, 31, 32, 33, 48, 97)
#: Less than a block of 16 pairs, one, and some with a rest.
INPUTS = (2, 30, 32, 34, 150, 256)
OUTPUTS = (1, 31, 32, 70)
#: Hardware is compared with the emulation, the emulation with fused multiply-adds.
PAIRS = [("amx", "amx_emulated"), ("amx_emulated", "avx2"), ("amx_emulated_avx512", "avx2")]
_PAGE = mmap.PAGESIZE


@pytest.fixture(params=PAIRS, ids=" beside ".join)
def pair(request: pytest.FixtureRequest, kernels_of: Callable[..., Kernels]) -> list[Kernels]:
    return [kernels_of(name, "amx") for name in request.param]


def product(
    kernels: Kernels, weight: torch.Tensor, x: torch.Tensor, place: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> torch.Tensor:
    packed = PackedWeight.of(kernels, [weight])
    if place is not None:
        packed, x = replace(packed, data=place(packed.data)), place(x)
    return PackedLinear(kernels, packed, None, float_output=True)(x)


@pytest.mark.parametrize("extremes", [0, 40], ids=["ordinary", "denormals and infinities"])
@pytest.mark.parametrize("inputs", INPUTS)
def test_products_have_the_bits_of_the_other_kind(pair: list[Kernels], inputs: int, extremes: int) -> None:
    """Every rest of rows, columns and inputs."""
    for outputs in OUTPUTS:
        weight = numbers((outputs, inputs), torch.bfloat16, outputs, extremes=extremes)
        for rows in ROWS:
            x = numbers((rows, inputs), torch.bfloat16, rows, extremes=extremes)
            assert_bits([product(kernels, weight, x) for kernels in pair])


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_attention_has_the_bits_of_the_other_kind(pair: list[Kernels], layer: LayerAttention) -> None:
    """Keys of whole blocks, of less than one, with a rest; values in one tile, in four and more; any number of queries."""
    for key_dim, value_dim in ((64, 64), (16, 16), (20, 48), (80, 96), (128, 128)):
        for kv_heads in (1, 2, 6):
            geometry = KvGeometry(2, kv_heads, key_dim, value_dim)
            rows = Rows.of(geometry, torch.bfloat16, ((0, 1), (300, 1), (17, 3), (250, 40)), key_dim)
            assert_bits([torch.cat([part.reshape(-1) for part in rows.natively(kernels, layer)]) for kernels in pair])


def test_the_products_of_two_blocks_are_those_of_one_after_the_other(kernels_of: Callable[..., Kernels]) -> None:
    """Sums of a block begin at zero: what a block's numbers cancel is cancelled before it meets the other block's."""
    x = torch.zeros(16, 64, dtype=torch.bfloat16)
    x[:, 0], x[:, 32], x[:, 34] = 1.0, 2.0**30, -(2.0**30)
    weight = torch.ones(32, 64, dtype=torch.bfloat16)
    for kind in ("amx_emulated", "avx2"):
        assert bool((product(kernels_of(kind, "amx"), weight, x) == 1.0).all())


def before_unreadable_memory(values: torch.Tensor) -> torch.Tensor:
    """Return a copy whose last byte is that of a page, before one that nothing may read."""
    size = values.numel() * values.element_size()
    pages = -(-size // _PAGE)
    memory = mmap.mmap(-1, (pages + 1) * _PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + pages * _PAGE), ctypes.c_size_t(_PAGE), 0) == 0
    copy = torch.frombuffer(memory, dtype=values.dtype, count=values.numel(), offset=pages * _PAGE - size)
    return copy.copy_(values.reshape(-1)).view(values.shape)


@pytest.mark.parametrize("rows", ROWS)
def test_nothing_is_read_beyond_rows_and_panels(kernels: Kernels, rows: int) -> None:
    """In any kind's products; what reads further ends the process."""
    for inputs in INPUTS:
        weight, x = numbers((33, inputs), torch.bfloat16, 1), numbers((rows, inputs), torch.bfloat16, 2)
        assert_bits([product(kernels, weight, x), product(kernels, weight, x, before_unreadable_memory)])
