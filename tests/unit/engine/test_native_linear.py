"""Products with packed weights, of every kind of processor that this one can pass for, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotwise.engine.native.library import Kernels
from spotwise.engine.native.packed import PackedLinear, PackedWeight, can_pack, interleaved

FORMATS = [torch.float32, torch.bfloat16]
ROWS = (0, 1, 2, 11, 12, 13, 16, 24, 25, 100, 300)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear_of(
    kernels: Kernels, weight: torch.Tensor, bias: torch.Tensor | None, *, float_output: bool = False
) -> PackedLinear:
    return PackedLinear(kernels, PackedWeight.of(kernels, [weight]), bias, float_output=float_output)


def assert_product(actual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Within the rounding of sums in float32 and of the result in its own type."""
    exact, size = x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    bound = 2e-6 * size + torch.finfo(actual.dtype).eps * exact.abs()
    assert bool(((actual.double() - exact).abs() <= bound + 1e-30).all())


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("outputs", [32, 96, 1, 31, 211])
def test_products_are_torchs_for_any_number_of_rows(kernels: Kernels, dtype: torch.dtype, outputs: int) -> None:
    """Tiles that are full and not, panels that are full and not, blocks of rows; with a bias and without; on 1 to 3 threads."""
    weight, bias = random(outputs, 90, dtype=dtype), random(outputs, dtype=dtype, seed=1)
    plain, biased = (
        linear_of(kernels, weight, None),
        linear_of(kernels, weight, bias),
    )
    for rows in ROWS:
        x = random(rows, 90, dtype=dtype, seed=rows)
        for linear, added in ((plain, None), (biased, bias)):
            out = linear(x)
            assert out.shape == (rows, outputs) and out.dtype is dtype
            assert_product(out, x, weight, added)
            for threads in (2, 3, 1):
                kernels.set_threads(threads)
                assert torch.equal(linear(x), out)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shape_is_multiplied(kernels: Kernels, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FORMATS))
    inputs = data.draw(st.integers(1, 70).filter(lambda width: dtype is torch.float32 or width % 2 == 0))
    outputs, rows = data.draw(st.integers(1, 100)), data.draw(st.integers(0, 40))
    kernels.set_threads(data.draw(st.integers(1, 3)))
    weight, x = random(outputs, inputs, dtype=dtype), random(inputs, rows, dtype=dtype, seed=1).t()
    bias = random(outputs, dtype=dtype, seed=2) if data.draw(st.booleans()) else None
    out = linear_of(kernels, weight, bias)(x[None, :, None])
    assert out.shape == (1, rows, 1, outputs)
    assert_product(out[0, :, 0], x, weight, bias)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_is_the_same_bit_for_bit_whatever_is_computed_beside_it(kernels: Kernels, dtype: torch.dtype) -> None:
    """Alone, among others, at another place of a tile, on other threads: the law that batches change no token."""
    linear = linear_of(kernels, random(75, 576, dtype=dtype), None)
    x = random(700, 576, dtype=dtype, seed=1)
    whole = linear(x)
    for threads in (1, 2, 3):
        kernels.set_threads(threads)
        for first, rows in ((0, 700), (3, 1), (699, 1), (5, 2), (1, 11), (7, 13), (100, 25), (333, 300)):
            assert torch.equal(linear(x[first : first + rows]), whole[first : first + rows])


def test_torch_alone_rounds_a_row_by_what_is_computed_beside_it() -> None:
    """Which is why kernels of our own are: README's known limits say that without them tokens may differ."""
    differ = []
    for dtype in FORMATS:
        weight, x = random(576, 576, dtype=dtype), random(300, 576, dtype=dtype, seed=1)
        whole = torch.nn.functional.linear(x, weight)
        differ += [not torch.equal(torch.nn.functional.linear(x[:rows], weight), whole[:rows]) for rows in (1, 2, 8)]
    assert any(differ)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("outputs", [64, 70, 3])
def test_logits_are_the_sums_before_they_are_narrowed(kernels: Kernels, dtype: torch.dtype, outputs: int) -> None:
    weight, x = random(outputs, 64, dtype=dtype), random(30, 64, dtype=dtype, seed=1)
    logits = linear_of(kernels, weight, None, float_output=True)(x)
    assert logits.dtype is torch.float32
    assert_product(logits, x, weight, None)
    assert torch.equal(logits.to(dtype), linear_of(kernels, weight, None)(x))


def test_logits_have_no_bias(kernels: Kernels) -> None:
    """The kernel would leave it out, so it is refused."""
    with pytest.raises(ValueError, match="bias"):
        linear_of(kernels, random(32, 16, dtype=torch.float32), torch.ones(32), float_output=True)


def test_rows_of_two_weights_are_interleaved(kernels: Kernels) -> None:
    """Sixteen of the first, the same sixteen of the second: a panel of gate and up."""
    gate, up = random(48, 10, dtype=torch.float32), random(48, 10, dtype=torch.float32, seed=1)
    packed = PackedWeight.of(kernels, [gate, up], interleaved(48)).data.view(3, 10, 2, 16)
    assert torch.equal(packed[:, :, 0].transpose(1, 2).reshape(48, 10), gate)
    assert torch.equal(packed[:, :, 1].transpose(1, 2).reshape(48, 10), up)


def test_values_that_are_not_finite_stay_in_their_row(kernels: Kernels) -> None:
    x = random(5, 64, dtype=torch.bfloat16)
    linear = linear_of(kernels, random(40, 64, dtype=torch.bfloat16, seed=1), None)
    expected = linear(x)
    x[2, 7] = torch.inf
    spoiled = linear(x)
    assert not bool(spoiled[2].isfinite().any())
    others = np.array([0, 1, 3, 4])
    assert torch.equal(spoiled[others], expected[others])


@pytest.mark.parametrize(
    "weight", [torch.zeros(4, 3, dtype=torch.bfloat16), torch.zeros(4, 4, dtype=torch.float16), torch.zeros(4)]
)
def test_what_the_kernels_do_not_know_is_not_packed(kernels: Kernels, weight: torch.Tensor) -> None:
    assert not can_pack(weight)
    with pytest.raises(ValueError, match="cannot be packed"):
        PackedWeight.of(kernels, [weight])


def test_an_input_of_another_kind_is_refused(kernels: Kernels) -> None:
    """The kernel would read past it."""
    linear = linear_of(kernels, random(8, 16, dtype=torch.bfloat16), None)
    for wrong in (torch.zeros(3, 16), torch.zeros(3, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="given"):
            linear(wrong)
