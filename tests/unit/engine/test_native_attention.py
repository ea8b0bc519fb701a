"""Attention by the kernel, of every kind of processor that this one can pass for, against the plain formulas in torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotwise.core.costs.batching import BatchRow
from spotwise.engine.forward.iteration import BatchLayout, SequenceRow
from spotwise.engine.forward.native_attention import NativeAttention, NativeLayout, can_attend
from spotwise.engine.forward.sequences import EngineSequence
from spotwise.engine.kv.cache import KvGeometry, KvPlaces, PagedKvCache
from spotwise.engine.model.attention import PagedAttention
from spotwise.engine.model.attention_interface import AttentionCall, LayerAttention
from spotwise.engine.model.score_terms import ScoreTerms, featured_causal_attention
from spotwise.engine.native.library import Kernels

CPU = torch.device("cpu")
LAYER = 1
HEADS = 6
SLOPES = (0.5, 0.25, 0.125, 0.0625, 0.03, 0.015)
SINKS = (0.5, -1.0, 2.0, 0.0, 30.0, -30.0)
LAYERS = {
    "plain": LayerAttention(0.3),
    "window": LayerAttention(0.3, window=7),
    "window beyond a chunk of keys": LayerAttention(0.3, window=300),
    "window of one": LayerAttention(0.3, window=1),
    "soft cap": LayerAttention(0.9, softcap=1.5),
    "slopes": LayerAttention(0.3, alibi_slopes=SLOPES),
    "sinks": LayerAttention(0.3, sinks=SINKS),
    "all": LayerAttention(0.9, 270, 2.0, SLOPES, SINKS),
}
GEOMETRIES = {
    "grouped": KvGeometry(2, 2, 64, 64),
    "one key head": KvGeometry(2, 1, 16, 16),
    "all key heads, latent": KvGeometry(2, 6, 20, 48),
}
CASES = [(layer, "grouped") for layer in LAYERS]
CASES += [(layer, geometry) for layer in ("plain", "all") for geometry in GEOMETRIES if geometry != "grouped"]
# First new position and new tokens: decodes and prefills, chunks of a prompt, in a block and across, beyond two chunks of keys.
ROWS = ((0, 1), (0, 5), (16, 1), (33, 17), (699, 1), (410, 210), (0, 40), (511, 2))
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
both_formats = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@dataclass
class Rows:
    """Rows of one iteration over a cache of their own: keys and values of all positions, queries of the new ones."""

    cache: PagedKvCache
    rows: list[SequenceRow]
    queries: list[torch.Tensor]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def of(
        cls,
        geometry: KvGeometry,
        dtype: torch.dtype,
        shapes: tuple[tuple[int, int], ...],
        seed: int = 0,
        heads: int = HEADS,
    ) -> Rows:
        """Positions before the new ones are in the cache, in shuffled blocks; all other bytes of it are large numbers."""
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-(first + count) // 16) for first, count in shapes]
        cache = PagedKvCache(geometry, sum(needed) + 3, 16, dtype, CPU)
        cache.keys.fill_(100.0)
        cache.values.fill_(1e6)
        free = random.Random(seed).sample(range(cache.num_blocks), cache.num_blocks)
        made = cls(cache, [], [], [], [])
        for index, ((first, count), blocks) in enumerate(zip(shapes, needed, strict=True)):
            table = tuple(free.pop() for _ in range(blocks))
            sequence = EngineSequence.of_tokens(range(first + count))
            made.rows.append((BatchRow(str(index), first, count, table), sequence))
            made.queries.append(torch.randn(heads, count, geometry.key_dim, generator=generator).to(dtype))
            made.keys.append(
                torch.randn(geometry.kv_heads, first + count, geometry.key_dim, generator=generator).to(dtype)
            )
            values = torch.randn(geometry.kv_heads, first + count, geometry.value_dim, generator=generator)
            made.values.append(values.to(dtype))
            if first:
                at = torch.arange(first)
                places = KvPlaces(torch.tensor(table)[at // 16], at % 16)
                cache.write(LAYER, places, made.keys[-1][:, :first], made.values[-1][:, :first])
        return made

    def new(self, tensors: list[torch.Tensor], chosen: list[int]) -> torch.Tensor:
        """Return `[1, heads, tokens, dim]` of the new tokens, laid out as a projection leaves it."""
        parts = [tensors[i][:, self.rows[i][0].first_position if tensors is not self.queries else 0 :] for i in chosen]
        return torch.cat(parts, dim=1).transpose(0, 1).contiguous().transpose(0, 1).unsqueeze(0)

    def attend(self, attention: Any, layout: Any, chosen: list[int] | None = None) -> list[torch.Tensor]:
        """Compute rows together and return each one's `[tokens, heads, value_dim]`."""
        chosen = list(range(len(self.rows))) if chosen is None else chosen
        flat = layout.lay_out([self.rows[i] for i in chosen], last_only=False)
        order = sorted(range(len(chosen)), key=lambda place: flat.last_token[place])  # a layout may put decodes first
        in_order = [chosen[place] for place in order]
        attention.plan = flat.plan
        query, key, value = (self.new(tensors, in_order) for tensors in (self.queries, self.keys, self.values))
        output = attention.attend(AttentionCall(SimpleNamespace(layer_idx=LAYER), query, key, value))[0]
        pieces = dict(zip(in_order, output.split([self.rows[i][0].num_tokens for i in in_order]), strict=True))
        return [pieces[i] for i in chosen]

    def natively(self, kernels: Kernels, layer: LayerAttention, chosen: list[int] | None = None) -> list[torch.Tensor]:
        attention = NativeAttention(kernels, self.cache, [LayerAttention(1.0), layer])
        return self.attend(attention, NativeLayout(self.cache), chosen)

    def expected(self, layer: LayerAttention) -> list[torch.Tensor]:
        """Return what the formulas give in float32 for the very numbers in the cache."""
        terms = ScoreTerms(layer, CPU)
        inputs = zip(self.queries, self.keys, self.values, strict=True)
        return [featured_causal_attention(q.float(), k.float(), v.float(), terms) for q, k, v in inputs]


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor], times: int = 1) -> None:
    for got, wanted in zip(actual, expected, strict=True):
        tolerance = times * TOLERANCE[got.dtype]
        torch.testing.assert_close(got.float(), wanted.float(), atol=tolerance, rtol=tolerance)


@both_formats
@pytest.mark.parametrize(("layer", "geometry"), CASES)
def test_rows_match_the_formulas(kernels: Kernels, layer: str, geometry: str, dtype: torch.dtype) -> None:
    """All rows in one call; what else lies in the cache counts nothing."""
    rows = Rows.of(GEOMETRIES[geometry], dtype, ROWS)
    assert can_attend(rows.cache)
    assert_near(rows.natively(kernels, LAYERS[layer]), rows.expected(LAYERS[layer]))


@both_formats
def test_any_number_of_heads_may_share_keys(kernels: Kernels, dtype: torch.dtype) -> None:
    """Also more than the rows of a tile of queries."""
    rows = Rows.of(KvGeometry(2, 1, 64, 64), dtype, ((0, 3), (40, 1)), heads=200)
    assert_near(rows.natively(kernels, LAYERS["plain"]), rows.expected(LAYERS["plain"]))


@both_formats
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_the_torch_path_gives_the_same_from_the_same_cache(
    best_kernels: Kernels, layer: LayerAttention, dtype: torch.dtype
) -> None:
    """An engine without kernels reads and writes the same blocks in the same order: it can take over any sequence."""
    ours, theirs = (Rows.of(GEOMETRIES["grouped"], dtype, ROWS) for _ in range(2))
    for rows in (ours, theirs):
        rows.cache.values.clamp_(max=10.0)  # the torch path multiplies what is unused by zero
    native = ours.natively(best_kernels, layer)
    paged = theirs.attend(PagedAttention(theirs.cache, [LayerAttention(1.0), layer]), BatchLayout(theirs.cache))
    assert_near(native, paged, times=2)  # the torch path rounds plain scores to bfloat16 as well
    assert torch.equal(ours.cache.keys, theirs.cache.keys) and torch.equal(ours.cache.values, theirs.cache.values)


@both_formats
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_row_is_the_same_bit_for_bit_whatever_is_computed_beside_it(
    kernels: Kernels, layer: LayerAttention, dtype: torch.dtype
) -> None:
    """Alone, in another order, on other threads; its keys and values, too."""
    rows = Rows.of(GEOMETRIES["grouped"], dtype, ROWS)
    together = rows.natively(kernels, layer)
    written = rows.cache.keys.clone(), rows.cache.values.clone()
    for index in range(len(ROWS)):
        assert torch.equal(rows.natively(kernels, layer, [index])[0], together[index])
    for threads in (2, 3):
        kernels.set_threads(threads)
        backwards = rows.natively(kernels, layer, list(reversed(range(len(ROWS)))))
        assert all(torch.equal(*pair) for pair in zip(reversed(backwards), together, strict=True))
    assert torch.equal(rows.cache.keys, written[0]) and torch.equal(rows.cache.values, written[1])


@both_formats
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_a_query_is_the_same_bit_for_bit_in_a_prompt_a_chunk_and_a_decode(
    kernels: Kernels, layer: LayerAttention, dtype: torch.dtype
) -> None:
    total = 620
    whole = Rows.of(GEOMETRIES["grouped"], dtype, ((0, total),))
    expected = whole.natively(kernels, layer)[0]
    for cuts in ((1, 17, 100, 300, 601), (16, 32, 512), tuple(range(600, total))):
        pieces = Rows.of(GEOMETRIES["grouped"], dtype, ((0, total),))
        row, sequence = pieces.rows[0]
        queries = pieces.queries[0]
        keys, values = pieces.keys[0], pieces.values[0]
        for first, end in zip((0, *cuts), (*cuts, total), strict=True):
            pieces.rows[0] = BatchRow(row.sequence_id, first, end - first, row.block_ids), sequence
            pieces.queries[0] = queries[:, first:end]
            pieces.keys[0], pieces.values[0] = keys[:, :end], values[:, :end]
            assert torch.equal(pieces.natively(kernels, layer)[0], expected[first:end])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_rows_are_attended(kernels: Kernels, data: st.DataObject) -> None:
    lengths = st.tuples(st.integers(0, 300), st.integers(1, 40))
    shapes = tuple(data.draw(st.lists(lengths, min_size=1, max_size=6)))
    layer = LayerAttention(
        0.3,
        data.draw(st.none() | st.integers(1, 350)),
        data.draw(st.none() | st.floats(0.5, 5.0)),
        data.draw(st.sampled_from([None, SLOPES])),
        data.draw(st.sampled_from([None, SINKS])),
    )
    kernels.set_threads(data.draw(st.integers(1, 3)))
    dtype = data.draw(st.sampled_from(list(TOLERANCE)))
    rows = Rows.of(KvGeometry(2, data.draw(st.sampled_from([1, 2, 3, 6])), 16, 16), dtype, shapes)
    assert_near(rows.natively(kernels, layer), rows.expected(layer))


@both_formats
def test_one_key_that_outweighs_all_others_is_all_that_counts(kernels: Kernels, dtype: torch.dtype) -> None:
    """Scores far apart, up to the ends of the exponential's range, give no infinity and no wrong weight."""
    rows = Rows.of(KvGeometry(2, 1, 16, 16), dtype, ((599, 1),))
    for scaling in (40.0, 1e4):
        layer = LayerAttention(scaling)
        assert_near(rows.natively(kernels, layer), rows.expected(layer))


def test_a_plan_names_only_blocks_that_exist() -> None:
    """The kernel reads every block of the plan; entries beyond a row's length may be anything."""
    rows = Rows.of(KvGeometry(2, 1, 16, 16), torch.float32, ((0, 20),))
    row, sequence = rows.rows[0]
    layout = NativeLayout(rows.cache)
    for blocks in ((0, 99), (-1, 1), (0, rows.cache.num_blocks)):
        with pytest.raises(ValueError, match="names a block outside"):
            layout.lay_out([(BatchRow("a", 0, 20, blocks), sequence)], last_only=False)
    layout.lay_out([(BatchRow("a", 0, 20, (*row.block_ids, 1 << 40)), sequence)], last_only=False)


def test_attention_outside_an_iteration_is_a_mistake(kernels: Kernels) -> None:
    cache = PagedKvCache(KvGeometry(1, 1, 16, 16), 1, 16, torch.float32, CPU)
    part = torch.zeros(1, 1, 1, 16)
    with pytest.raises(RuntimeError, match="outside an iteration"):
        NativeAttention(kernels, cache, [LayerAttention(1.0)]).attend(
            AttentionCall(torch.nn.Module(), part, part, part)
        )
