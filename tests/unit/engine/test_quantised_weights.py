"""Panels that stay quantised, of every kind of processor that this one can pass for, against the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotwise.engine.block_kinds import BLOCK_KINDS, BlockKind, kinds_of_stack
from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import BlockRows, PackedEmbedding, PackedLinear, PackedWeight, interleaved
from tests.unit.engine.quantised_models import random_blocks

FORMATS = [torch.float32, torch.bfloat16]
KINDS = list(BLOCK_KINDS.values())


def bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of numbers; those that are none are all the same."""
    values = torch.where(values.isnan(), torch.full_like(values, float("nan")), values)
    return values.view(torch.int32 if values.dtype is torch.float32 else torch.int16)


def kept(
    kernels: Kernels, weights: list[BlockRows], dtype: torch.dtype, order: np.ndarray | None = None
) -> PackedLinear:
    return PackedLinear(kernels, PackedWeight.of_blocks(kernels, weights, dtype, order), None)


def plain(
    kernels: Kernels, weights: list[BlockRows], dtype: torch.dtype, order: np.ndarray | None = None
) -> PackedLinear:
    widened = [weight.kind.widened(weight.data).to(dtype) for weight in weights]
    return PackedLinear(kernels, PackedWeight.of(kernels, widened, order), None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_kinds_are_those_of_gguf(kind: BlockKind) -> None:
    known = gguf.GGMLQuantizationType[kind.name]
    assert gguf.GGML_QUANT_SIZES[known] == (kind.inputs, kind.row_block_bytes)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("extremes", [False, True], ids=["usual", "extreme scales"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_weight_is_widened_as_by_gguf_bit_for_bit(
    kernels: Kernels, kind: BlockKind, extremes: bool, dtype: torch.dtype
) -> None:
    inputs, rows = 3 * kind.inputs, 70
    blocks = random_blocks(kind, rows, inputs, seed=1, extremes=extremes)
    with np.errstate(all="ignore"):
        expected = kind.widened(blocks).to(dtype)
    weight = PackedWeight.of_blocks(kernels, [BlockRows(kind, blocks, inputs)], dtype)
    for threads in (1, 3):
        kernels.set_threads(threads)
        found = PackedEmbedding(kernels, weight)(torch.arange(rows).flip(0).view(7, 10))
        assert found.shape == (7, 10, inputs)
        assert torch.equal(bits(found.view(rows, inputs)), bits(expected.flip(0)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_products_are_those_of_the_widened_panel_bit_for_bit(kernels: Kernels, data: st.DataObject) -> None:
    """Any kind, number of rows, columns and inputs, on any number of threads."""
    kind = data.draw(st.sampled_from(KINDS))
    dtype = data.draw(st.sampled_from(FORMATS))
    inputs = kind.inputs * data.draw(st.integers(1, 12 if kind.inputs == 32 else 3))
    outputs, rows = data.draw(st.integers(1, 100)), data.draw(st.integers(0, 40))
    seed = data.draw(st.integers(0, 99))
    weights = [BlockRows(kind, random_blocks(kind, outputs, inputs, seed), inputs)]
    kernels.set_threads(data.draw(st.integers(1, 3)))
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).to(dtype)
    assert torch.equal(kept(kernels, weights, dtype)(x), plain(kernels, weights, dtype)(x))


@pytest.mark.parametrize("dtype", FORMATS)
def test_stacked_weights_have_a_kind_each(kernels: Kernels, dtype: torch.dtype) -> None:
    """Queries, keys and values of three kinds; gate and up, interleaved, of one."""
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    gate_up = [BlockRows(kind, random_blocks(kind, 48, 512, seed), 512) for seed, kind in enumerate([KINDS[2]] * 2)]
    order = interleaved(48)
    assert torch.equal(kept(kernels, gate_up, dtype, order)(x), plain(kernels, gate_up, dtype, order)(x))
    with pytest.raises(ValueError, match="share a panel"):
        kept(kernels, [gate_up[0], BlockRows(KINDS[0], random_blocks(KINDS[0], 48, 512), 512)], dtype, order)


def test_kinds_are_stacked_where_no_panel_has_two() -> None:
    first, second = KINDS[0], KINDS[3]
    assert kinds_of_stack([first, second], [64, 33]) == ()
    assert kinds_of_stack([first, second], [64, 32]) == (first, second)
    assert kinds_of_stack([first, second], [64, 32], interleaves=True) == ()
    assert kinds_of_stack([first, first], [33, 1], interleaves=True) == (first, first)
    assert kinds_of_stack([first, None], [64, 32]) == ()


def test_a_token_that_is_not_in_the_vocabulary_is_refused(best_kernels: Kernels) -> None:
    blocks = BlockRows(KINDS[0], random_blocks(KINDS[0], 40, 64), 64)
    embedding = PackedEmbedding(best_kernels, PackedWeight.of_blocks(best_kernels, [blocks], torch.float32))
    for token in (40, -1):
        with pytest.raises(IndexError, match="below 40"):
            embedding(torch.tensor([[3, token]]))
