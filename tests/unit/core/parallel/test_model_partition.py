"""Which layers, heads and columns the positions of a group have."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.parallel.model_partition import ModelDimensions, ModelShare, column_bounds, stage_layers

SMOLLM2 = ModelDimensions(
    layers=30,
    query_heads=9,
    kv_heads=3,
    key_dim=64,
    value_dim=64,
    hidden_size=576,
    inner_size=1536,
    vocab_size=49152,
    head_layers=8.0,
)


@pytest.mark.parametrize(
    ("stages", "expected"), [(1, [30]), (2, [19, 11]), (3, [13, 13, 4]), (4, [10, 10, 9, 1]), (30, [1] * 30)]
)
def test_stages_are_cut_by_cost(stages: int, expected: list[int]) -> None:
    """The head costs as much as eight of SmolLM2's layers, so that the last stage has fewer of them."""
    cut = stage_layers(30, stages, 8.0)
    assert [len(part) for part in cut] == expected
    assert list(itertools.chain(*cut)) == list(range(30))


@given(st.integers(1, 60), st.integers(1, 12), st.floats(0, 20))
def test_no_other_cut_makes_the_costliest_stage_cheaper(layers: int, stages: int, head_layers: float) -> None:
    if stages > layers:
        return
    cut = stage_layers(layers, stages, head_layers)
    assert list(itertools.chain(*cut)) == list(range(layers)) and all(cut)

    def worst(last: int) -> float:
        others = -(-(layers - last) // (stages - 1)) if stages > 1 else 0
        return max(last + head_layers, others)

    chosen = max(len(cut[-1]) + head_layers, *(len(part) for part in cut[:-1]), 0)
    lasts = range(1, layers - stages + 2) if stages > 1 else (layers,)
    assert chosen == min(worst(last) for last in lasts)


@given(st.integers(1, 4000), st.integers(1, 9))
def test_columns_are_cut_at_whole_panels(width: int, shards: int) -> None:
    bounds = column_bounds(width, shards)
    assert bounds[0] == 0 and bounds[-1] == width and sorted(bounds) == list(bounds)
    assert all(bound % 32 == 0 or bound == width for bound in bounds)


@given(st.integers(1, 3), st.sampled_from([1, 3]))
def test_the_positions_of_a_group_have_each_part_once(stages: int, shards: int) -> None:
    """Layers by stage; KV heads, their query heads, and columns by shard."""
    shares = [ModelShare(SMOLLM2, stage, stages, shard, shards) for stage in range(stages) for shard in range(shards)]
    cells = [(layer, head) for share in shares for layer in share.layers for head in share.kv_heads]
    assert sorted(cells) == list(itertools.product(range(30), range(3)))
    for share in shares:
        assert share.query_heads == range(share.kv_heads.start * 3, share.kv_heads.stop * 3)
        assert share.is_first == (0 in share.layers) and share.is_last == (29 in share.layers)
    first = shares[:shards]
    assert sorted(column for share in first for column in share.columns(1536)) == list(range(1536))


@pytest.mark.parametrize(
    ("changes", "stages", "shards", "reason"),
    [
        ({}, 31, 1, "31 stages for 30 layers"),
        ({}, 1, 2, "2 shards do not divide its 3 KV heads; possible: 1, 3"),
        ({"key_dim": 80, "kv_heads": 6}, 1, 6, "6 shards cut its 720 columns of queries within a panel of 32"),
        ({"key_dim": 16}, 1, 3, "within a panel of 32; possible: 1"),
        ({"inner_size": 64}, 1, 3, "3 shards for 64 columns, which are 2 panels"),
        ({}, 0, 1, "each must be at least 1"),
        ({"stays_whole": "one matrix for all heads"}, 1, 3, "one matrix for all heads"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(changes: dict[str, Any], stages: int, shards: int, reason: str) -> None:
    dimensions = replace(SMOLLM2, **changes)
    refusal = dimensions.why_not(stages, shards)
    assert refusal is not None and reason in refusal
    with pytest.raises(ValueError, match=re.escape(reason)):
        ModelShare(dimensions, 0, stages, 0, shards)


def test_a_position_outside_the_group_is_refused() -> None:
    """Stages and shards are counted from 0."""
    with pytest.raises(ValueError, match="position 2,0 of 2 stages of 1 shards"):
        ModelShare(SMOLLM2, 2, 2, 0, 1)


def test_the_degrees_that_a_model_allows() -> None:
    """SmolLM2 has three KV heads of two panels each."""
    assert SMOLLM2.shard_degrees == (1, 3)
    assert replace(SMOLLM2, kv_heads=8, query_heads=8, key_dim=32, value_dim=32).shard_degrees == (1, 2, 4, 8)
