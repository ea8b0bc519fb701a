"""Shapes of the paper's models."""

from __future__ import annotations

import pytest

from spotwise.cli.plan.model_shapes import PAPER_SHAPES
from spotwise.core.parallel.model_shape import ModelShape


@pytest.mark.parametrize(
    ("shape", "billions"),
    list(zip(PAPER_SHAPES, (6.7, 20.0, 30.0), strict=True)),
    ids=[each.name for each in PAPER_SHAPES],
)
def test_shapes_have_as_many_weights_as_their_names_state(shape: ModelShape, billions: float) -> None:
    assert f"{billions:g}B" in shape.name
    assert shape.weight_bytes / 4 / 1e9 == pytest.approx(billions, rel=0.06)
