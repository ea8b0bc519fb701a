"""Every kind of processor gives the same bits: for products, attention, norms, draws, and whole models."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spotwise.engine.block_kinds import BLOCK_KINDS, BlockKind
from spotwise.engine.engine import Engine
from spotwise.engine.kv.cache import KvGeometry, PagedKvCache
from spotwise.engine.model.attention_interface import LayerAttention
from spotwise.engine.model.loading import EngineConfig, load_model
from spotwise.engine.native import processor
from spotwise.engine.native.library import DRAW, Kernels
from spotwise.engine.native.norm import NativeNorm
from spotwise.engine.native.packed import BlockRows, PackedLinear, PackedWeight
from tests.example_budget import BUDGET_S
from tests.unit.engine.conftest import KINDS, usable
from tests.unit.engine.quantised_models import random_blocks
from tests.unit.engine.test_fused_layer import first_logits, tiny
from tests.unit.engine.test_native_attention import SINKS, SLOPES, Rows

ORDERS = ("dot", "amx")
DTYPES = [torch.float32, torch.bfloat16]
#: What a number may be: ordinary ones, and those at which instructions differ.
EXTREMES = (
    0.0,
    -0.0,
    1e-45,
    -3e-41,
    1.1754944e-38,
    -1.2e-38,
    3e-39,
    1e-20,
    -1e-20,
    1e19,
    -3e38,
    3.4e38,
    torch.inf,
    -torch.inf,
)


@pytest.fixture(params=ORDERS)
def kinds(request: pytest.FixtureRequest) -> list[Kernels]:
    """All kinds of kernels of one order that this processor runs and that have fused multiply-adds, on one thread each."""
    flags = processor.usable_flags()
    found = [
        usable(variant, order)
        for variant, order in KINDS
        if order == request.param and variant.needs and variant.needs <= flags
    ]
    if len(found) < 2:
        pytest.skip("this processor runs one kind of kernels only")
    for kernels in found:
        kernels.set_threads(1)
    return found


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, extremes: int = 0) -> torch.Tensor:
    """Return normal numbers of many sizes, of which `extremes` are replaced."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, 3, shape, generator=generator)
    flat = values.view(-1)
    if extremes and len(flat):
        places = torch.randint(len(flat), (extremes,), generator=generator)
        flat[places] = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), (extremes,), generator=generator)]
    return values.to(dtype)


def assert_bits(results: list[torch.Tensor]) -> None:
    """The same bits, of what is a number: the sign of a NaN is that of an operand, and says nothing."""
    first = results[0].float()
    for other in results[1:]:
        same = (first == other.float()) & (first.signbit() == other.float().signbit()) | first.isnan() & other.isnan()
        assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} differ"


#: All of them in `make test-properties`: to draw so many takes a quarter of a minute, though within a budget few are tried.
any_case = settings(
    max_examples=500 if BUDGET_S else 10_000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
dtypes, seeds = st.sampled_from(DTYPES), st.integers(0, 2**32)
#: Of each kind of kernels; there are no more.
threads = st.lists(st.integers(1, 3), min_size=len(KINDS), max_size=len(KINDS))


@st.composite
def parts_of(draw: st.DrawFn, most: int) -> tuple[int, slice]:
    """Draw a number of rows, and some of them that follow each other."""
    rows = draw(st.integers(1, most))
    first = draw(st.integers(0, rows - 1))
    return rows, slice(first, draw(st.integers(first + 1, rows)))


@any_case
@given(
    dtype=dtypes,
    inputs=st.integers(1, 90).map(lambda pairs: 2 * pairs),
    outputs=st.integers(1, 70),
    part=parts_of(40),
    extremes=st.integers(0, 12),
    seed=seeds,
    threads=threads,
    alone=st.lists(st.booleans(), min_size=len(KINDS), max_size=len(KINDS)),
    as_floats=st.booleans(),
)
def test_products_are_the_same_for_the_same_rows(
    kinds: list[Kernels],
    dtype: torch.dtype,
    inputs: int,
    outputs: int,
    part: tuple[int, slice],
    extremes: int,
    seed: int,
    threads: list[int],
    alone: list[bool],
    as_floats: bool,
) -> None:
    """Whatever is computed beside them, on any number of threads; with numbers of any size."""
    rows, chosen = part
    weight = numbers((outputs, inputs), dtype, seed, extremes=extremes)
    x = numbers((rows, inputs), dtype, seed + 1, extremes=extremes)
    results = []
    for kernels, count, is_alone in zip(kinds, threads, alone, strict=False):
        kernels.set_threads(count)
        linear = PackedLinear(kernels, PackedWeight.of(kernels, [weight]), None, float_output=as_floats)
        results.append(linear(x[chosen]) if is_alone else linear(x)[chosen])
    assert_bits(results)


@any_case
@given(
    kind=st.sampled_from(list(BLOCK_KINDS.values())),
    dtype=dtypes,
    blocks=st.integers(1, 3),
    outputs=st.integers(1, 70),
    rows=st.integers(1, 40),
    extremes=st.tuples(st.booleans(), st.integers(0, 3)),
    seed=seeds,
    threads=threads,
)
def test_products_of_quantised_weights_are_the_same(
    kinds: list[Kernels],
    kind: BlockKind,
    dtype: torch.dtype,
    blocks: int,
    outputs: int,
    rows: int,
    extremes: tuple[bool, int],
    seed: int,
    threads: list[int],
) -> None:
    """Widened in registers for few rows, and before a tile multiplies more."""
    inputs, (extreme_scales, extreme_numbers) = kind.inputs * blocks, extremes
    weight = BlockRows(kind, random_blocks(kind, outputs, inputs, seed, extremes=extreme_scales), inputs)
    x = numbers((rows, inputs), dtype, seed, extremes=extreme_numbers)
    results = []
    for kernels, count in zip(kinds, threads, strict=False):
        kernels.set_threads(count)
        results.append(PackedLinear(kernels, PackedWeight.of_blocks(kernels, [weight], dtype), None)(x))
    assert_bits(results)


@any_case
@given(
    layer=st.builds(
        LayerAttention,
        st.sampled_from([0.01, 0.3, 4.0]),
        st.sampled_from([None, 1, 7, 40]),
        st.sampled_from([None, 1.5, 30.0]),
        st.sampled_from([None, SLOPES]),
        st.sampled_from([None, SINKS]),
    ),
    shapes=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 20)), min_size=1, max_size=3).map(tuple),
    geometry=st.builds(KvGeometry, st.just(2), st.sampled_from([1, 2, 6]), st.sampled_from([16, 20]), st.just(16)),
    dtype=dtypes,
    seed=st.integers(0, 1000),
    threads=threads,
)
def test_attention_is_the_same(
    kinds: list[Kernels],
    layer: LayerAttention,
    shapes: tuple[tuple[int, int], ...],
    geometry: KvGeometry,
    dtype: torch.dtype,
    seed: int,
    threads: list[int],
) -> None:
    """Decodes and prefills over several blocks; windows, soft caps, slopes and sinks."""
    results = []
    for kernels, count in zip(kinds, threads, strict=False):
        kernels.set_threads(count)
        parts = Rows.of(geometry, dtype, shapes, seed).natively(kernels, layer)
        results.append(torch.cat([part.reshape(-1) for part in parts]))
    assert_bits(results)


@any_case
@given(
    dtype=dtypes,
    width=st.integers(1, 100),
    seed=seeds,
    extremes=st.integers(0, 3),
    draw=st.tuples(
        st.sampled_from([0.0, 0.01, 0.7, 1.0, 5.0]),
        st.sampled_from([1.0, 0.9, 0.1]),
        st.sampled_from([0.0, 0.05]),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 1, 40]),
    ),
)
def test_norms_and_draws_are_the_same(
    kinds: list[Kernels], dtype: torch.dtype, width: int, seed: int, extremes: int, draw: tuple[float, ...]
) -> None:
    x, weight = numbers((5, width), dtype, seed, extremes=extremes), numbers((width,), dtype, seed + 1)
    assert_bits([NativeNorm(kernels, weight, 1e-5)(x) for kernels in kinds])
    logits = numbers((4, 10 * width), torch.float32, seed + 2) * 4
    draws = np.array([draw] * len(logits), dtype=DRAW)
    picked = [np.empty(len(logits), np.int64) for _ in kinds]
    for kernels, tokens in zip(kinds, picked, strict=True):
        kernels.pick(logits.data_ptr(), *logits.shape, draws.ctypes.data, tokens.ctypes.data)
    assert all(np.array_equal(tokens, picked[0]) for tokens in picked)


def test_bfloat16_is_rounded_as_the_processor_does(kinds: list[Kernels]) -> None:
    """Every upper half of a float, with lower halves around the middle: through a product with one, and its narrowing."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = torch.from_numpy((upper | lower).view(np.float32).copy()).view(-1, 1).repeat(1, 2)
        values[:, 1] = 0
        results = []
        for kernels in kinds:
            linear = PackedLinear(kernels, PackedWeight.of(kernels, [torch.eye(2)]), None)
            floats = linear(values)[:, :1].contiguous()
            norm = NativeNorm(kernels, torch.ones(16, dtype=torch.bfloat16), 1.0)
            narrow = norm(floats.to(torch.bfloat16).repeat(1, 16))
            results.append(torch.cat([floats.view(-1), narrow.float().view(-1)]))
        assert_bits(results)


def fused(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round a * b + c once: products of bfloat16 are exact, and float64 rounds a sum of two float32 as once."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


@pytest.mark.parametrize(("order", "kind"), [("dot", "avx2"), ("amx", "avx2"), ("amx", "amx_emulated"), ("amx", "amx")])
def test_the_order_is_that_of_the_instruction(order: str, kind: str, kernels_of: Callable[..., Kernels]) -> None:
    """Odd, then even product of each pair (VDPBF16PS), or evens and odds of 16 pairs alone, then together (TDPBF16PS)."""
    x, weight = numbers((7, 150), torch.bfloat16, 1), numbers((40, 150), torch.bfloat16, 2)
    a, b = x.float().numpy()[:, None], weight.float().numpy()[None]
    total = np.zeros((7, 40), np.float32)
    if order == "dot":
        for pair in range(0, 150, 2):
            total = fused(a[..., pair + 1], b[..., pair + 1], total)
            total = fused(a[..., pair], b[..., pair], total)
    else:
        for block in range(0, 150, 32):
            even, odd = np.zeros_like(total), np.zeros_like(total)
            for pair in range(block, min(block + 32, 150), 2):
                even = fused(a[..., pair], b[..., pair], even)
                odd = fused(a[..., pair + 1], b[..., pair + 1], odd)
            total = total + (even + odd)
    kernels = kernels_of(kind, order)
    linear = PackedLinear(kernels, PackedWeight.of(kernels, [weight]), None, float_output=True)
    assert_bits([linear(x), torch.from_numpy(total)])


def test_float32_is_added_input_by_input(kernels_of: Callable[..., Kernels]) -> None:
    """What the order says, in numbers of which every product and sum is exact but the last."""
    kernels = kernels_of("avx2")
    weight = torch.tensor([[1.0, 1.0, 1.0, -1.0]])
    linear = PackedLinear(kernels, PackedWeight.of(kernels, [weight]), None)
    for order in itertools.permutations((2.0**24, 1.0, 1.0)):
        expected = np.float32(0)
        for value in order:
            expected = np.float32(expected + np.float32(value))
        assert float(linear(torch.tensor([[*order, 2.0**24]]))[0, 0]) == float(expected - np.float32(2.0**24))


@pytest.mark.parametrize("variety", ["plain", "norms of query and key", "window", "gelu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_gives_the_same_logits(
    variety: str, dtype: str, kinds: list[Kernels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny(variety, tmp_path)
    results = []
    for kernels in kinds:
        model, facts = load_model(EngineConfig(folder, dtype, "cpu", threads=1))
        cache = PagedKvCache(facts.geometry, 64, 16, facts.kv_dtype, model.device)
        engine = Engine(model, facts, cache, kernels)
        assert engine.fused_layers and isinstance(model.model.norm, NativeNorm)
        results.append(first_logits(engine, monkeypatch))
    assert_bits(results)
