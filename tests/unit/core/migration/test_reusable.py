"""Tables of what can be used again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.core.migration.deployment import RunningRequest
from spotwise.core.migration.mapping.parts import Reusable
from spotwise.core.parallel.config import ParallelConfig, Position
from spotwise.core.parallel.model_shape import ModelShape
from tests.unit.core.migration.held_parts import common_bytes, kv_of, weights_of
from tests.unit.core.parallel.builders import engine_shape

MODEL = ModelShape(
    "small", layers=7, hidden_size=8, layer_bytes=1001, embedding_bytes=77, head_bytes=55, kv_layer_token_bytes=24
)
#: Of 24 KV heads, so that it can be cut into 1, 2, 3, 4, 6 and 8 shards.
CUT_BY_THE_ENGINE = engine_shape(layers=9, kv_heads=24)
degrees = st.tuples(st.integers(1, 3), st.integers(1, 8), st.sampled_from([1, 2, 3, 4, 6, 8]))


@pytest.mark.parametrize("model", [MODEL, CUT_BY_THE_ENGINE])
@settings(max_examples=40)
@given(degrees, degrees, st.data())
def test_the_tables_have_what_two_positions_share(
    model: ModelShape, before: tuple[int, int, int], after: tuple[int, int, int], data: st.DataObject
) -> None:
    """The tables have the sums over the parts that both hold, for every pair; without an old position, nothing."""
    old, new = ParallelConfig(*before), ParallelConfig(*after)
    pairs = st.tuples(st.integers(0, old.pipelines - 1), st.integers(0, new.pipelines - 1))
    tokens = data.draw(st.dictionaries(pairs, st.integers(1, 50)))
    reusable = Reusable.between(old, new, model, tokens)
    stood: list[Position | None] = [*data.draw(st.lists(st.sampled_from(list(old.positions())), max_size=4)), None]
    positions = data.draw(st.lists(st.sampled_from(list(new.positions())), max_size=4))
    gains = reusable.gains(stood, positions)
    assert gains.shape == (len(stood), len(positions))
    for row, one in enumerate(stood):
        for column, other in enumerate(positions):
            if one is None:
                assert gains[row, column] == 0
                assert reusable.pair_bytes(one, other) == (0, 0)
                continue
            taken_over = tokens.get((one.pipeline, other.pipeline), 0)
            weight_bytes = common_bytes(weights_of(one, old, model), weights_of(other, new, model))
            request = RunningRequest("r", taken_over)
            kv_bytes = common_bytes(kv_of(one, old, model, request), kv_of(other, new, model, request))
            assert reusable.pair_bytes(one, other) == (weight_bytes, kv_bytes)
            assert gains[row, column] == weight_bytes + kv_bytes


def test_a_thousand_devices_of_large_models_are_counted_exactly() -> None:
    """A terabyte of weights is no more than 64 bits hold, and none is rounded."""
    large = ModelShape("large", 100, 20480, 10**10 + 1, 10**9 + 7, 10**9 + 9, 163840)
    config = ParallelConfig(128, 1, 8)
    places = list(config.positions())
    gains = Reusable.between(config, config, large, {}).gains(places, places)
    assert int(np.trace(gains)) == 128 * large.weight_bytes
