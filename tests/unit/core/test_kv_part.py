"""Parts of a model's KV: workers of any two shapes hand over every layer and head exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.parallel.model_partition import ModelDimensions, ModelShare
from spotwise.core.requests.kv_part import KvPart, covers

DIMENSIONS = ModelDimensions(7, 12, 6, 64, 64, 768, 768, 768, head_layers=1.5)
SHAPES = st.sampled_from([(1, 1), (1, 2), (1, 6), (2, 3), (3, 1), (5, 2), (7, 6)])


def parts_of(stages: int, shards: int) -> list[KvPart]:
    places = [(stage, shard) for stage in range(stages) for shard in range(shards)]
    shares = [ModelShare(DIMENSIONS, stage, stages, shard, shards) for stage, shard in places]
    return [KvPart.of(share.layers, share.kv_heads) for share in shares]


@given(SHAPES, SHAPES)
def test_every_layer_and_head_goes_over_once(source: tuple[int, int], target: tuple[int, int]) -> None:
    """The overlaps of each target's part with all sources' are that part, none twice."""
    for part in parts_of(*target):
        pieces = [piece for other in parts_of(*source) if (piece := part.overlap(other)) is not None]
        cells = [(layer, head) for piece in pieces for layer in piece.layers for head in piece.kv_heads]
        assert sorted(cells) == [(layer, head) for layer in part.layers for head in part.kv_heads]
        assert covers(part, pieces)
        assert not covers(part, pieces[1:])
        assert all(part.has(piece) for piece in pieces)


def test_parts_that_share_nothing_have_no_overlap() -> None:
    part = KvPart.of(range(2, 4), range(2))
    assert part.overlap(KvPart.of(range(4, 6), range(2))) is None
    assert part.overlap(KvPart.of(range(2, 4), range(2, 4))) is None
    assert not part.has(KvPart.of(range(2, 5), range(2)))
    assert str(part) == "layers 2-3, heads 0-1"


def test_some_of_its_layers_are_counted_from_its_first() -> None:
    """With all its heads; beyond it, and none at all, is an error."""
    part = KvPart.of(range(2, 6), range(1, 3))
    assert part.layers_of(1, 2) == KvPart.of(range(3, 5), range(1, 3))
    for first, count in ((0, 0), (-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="layers"):
            part.layers_of(first, count)


@pytest.mark.parametrize("numbers", [(0, 0, 0, 1), (0, 1, 0, 0), (-1, 1, 0, 1), (0, 1, -1, 1)])
def test_nothing_is_no_part(numbers: tuple[int, int, int, int]) -> None:
    """Without layers or heads, or from before the first."""
    with pytest.raises(ValueError, match="a part of the KV"):
        KvPart(*numbers)
