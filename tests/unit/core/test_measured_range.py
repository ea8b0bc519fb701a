"""How far a profile's measurements reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import BatchShape
from spotwise.core.costs.measured_range import RANGES, MeasuredRange, TimeBeyond

RANGE = MeasuredRange(prompt_tokens=64, prompt_context=32.0, decodes=4, decode_context=100.0)
WITHIN = BatchShape(64, 64 * 32.0, 4, 400)
SHAPES = st.builds(
    BatchShape,
    st.integers(0, 500),
    st.floats(0.0, 1e5),
    st.integers(0, 50),
    st.integers(0, 5000),
)


@pytest.mark.parametrize(
    ("shape", "exceeded"),
    [
        (WITHIN, ()),
        (BatchShape(), ()),
        (replace(WITHIN, prompt_tokens=65), ("prompt_tokens",)),
        (replace(WITHIN, prompt_context=64 * 33.0), ("prompt_context",)),
        (replace(WITHIN, decodes=5), ("decodes",)),
        (replace(WITHIN, decode_context=401), ("decode_context",)),
        (BatchShape(512, 512 * 256.0, 0, 0), ("prompt_tokens", "prompt_context")),
    ],
)
def test_what_exceeds_the_range_is_named(shape: BatchShape, exceeded: tuple[str, ...]) -> None:
    """Context is compared by prompt token and by decode, whatever their number."""
    assert RANGE.exceeded(shape) == exceeded


@given(st.lists(SHAPES, min_size=1))
def test_nothing_measured_is_beyond_the_range(shapes: list[BatchShape]) -> None:
    measured = MeasuredRange.of(shapes)
    assert all(measured.exceeded(shape) == () for shape in shapes)
    for name in RANGES:
        smaller = replace(measured, **{name: getattr(measured, name) / 2})
        assert not getattr(measured, name) or any(name in smaller.exceeded(shape) for shape in shapes)


def test_time_beyond_is_a_share_of_all() -> None:
    counted = TimeBeyond(RANGE)
    assert counted.extrapolation().share == 0.0
    counted.count(WITHIN, 6.0)
    counted.count(replace(WITHIN, decodes=5), 1.0)
    counted.count(replace(WITHIN, prompt_tokens=100, decodes=50, decode_context=0), 3.0)
    found = counted.extrapolation()
    assert (found.measured, found.share) == (RANGE, pytest.approx(0.4))
    assert found.shares == {"prompt_tokens": pytest.approx(0.3), "decodes": pytest.approx(0.4)}
