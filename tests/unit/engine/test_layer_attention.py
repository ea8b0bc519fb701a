from __future__ import annotations

import pytest

from spotwise.engine.model.attention_interface import LayerAttention


@pytest.mark.parametrize(
    ("layer", "plain"),
    [
        (LayerAttention(0.5), True),
        (LayerAttention(0.5, window=10), True),
        (LayerAttention(0.5, window=9), False),
        (LayerAttention(0.5, softcap=30.0), False),
        (LayerAttention(0.5, alibi_slopes=(0.5,)), False),
        (LayerAttention(0.5, sinks=(0.0,)), False),
    ],
)
def test_a_layer_is_plain_where_nothing_but_its_scaling_counts(layer: LayerAttention, plain: bool) -> None:
    """A window counts only in a context that is longer; everything else counts always."""
    assert layer.is_plain_within(10) is plain
