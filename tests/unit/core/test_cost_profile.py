"""Cost profiles: their values, their speed, and how far they were measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import (
    BatchShape,
    LinearIterationCost,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
)
from spotwise.core.costs.cost_profile import BUILT_IN, RANGES, CostProfile, MeasuredRange, TimeBeyond, at_speed

TABLE = TableIterationCost(
    prompt=PiecewiseLinear((1, 512, 2048), (0.01, 0.05, 0.2)),
    decode=PiecewiseLinear((1, 64), (0.02, 0.04)),
    prompt_context_s=1e-8,
    decode_context_s=2e-8,
)


def test_context_weighs_as_in_the_cost() -> None:
    """The tokens of context that cost as much as one prompt token; none if the cost is unknown."""
    linear = LinearIterationCost(0.01, prompt_token_s=1e-4, prompt_context_s=1e-7, decode_s=0.0, decode_context_s=0.0)
    assert replace(BUILT_IN, iteration=linear).context_parity == pytest.approx(1000)
    assert replace(BUILT_IN, iteration=replace(linear, prompt_context_s=0.0)).context_parity == math.inf
    table = replace(TABLE, prompt=PiecewiseLinear((16.0, 32.0, 116.0), (0.01, 0.015, 0.02)), prompt_context_s=1e-7)
    assert replace(BUILT_IN, iteration=table).context_parity == pytest.approx(1000)
    assert replace(BUILT_IN, iteration=replace(table, prompt_context_s=0.0)).context_parity == math.inf


def test_the_built_in_profile_is_about_what_was_published() -> None:
    """TTFT of 1,500 tokens and TBT of one sequence behind them."""
    prompt = BatchShape(1500, 1500 * 750.0, 0, 0)
    assert BUILT_IN.iteration.iteration_s(prompt) == pytest.approx(0.095, rel=0.05)
    assert BUILT_IN.iteration.iteration_s(BatchShape(0, 0.0, 1, 1500)) == pytest.approx(0.03, rel=0.1)


@pytest.mark.parametrize("mixed_factor", [None, 1.1])
def test_a_speed_divides_the_time(mixed_factor: float | None) -> None:
    """The speed divides the time of every iteration, for either kind of cost, and must be positive."""
    table = TableIterationCost(
        PiecewiseLinear((1, 100, 200), (0.01, 0.02, 0.05)),
        PiecewiseLinear((1, 8), (0.01, 0.011)),
        1e-7,
        1e-8,
        mixed_factor,
    )
    shapes = (BatchShape(0, 0.0, 4, 100), BatchShape(150, 9000.0, 0, 0), BatchShape(150, 9000.0, 4, 100), BatchShape())
    for cost in (BUILT_IN.iteration, table):
        for shape in shapes:
            assert at_speed(cost, 10.0).iteration_s(shape) == pytest.approx(cost.iteration_s(shape) / 10)
        for speed in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="speed"):
                at_speed(cost, speed)


def test_a_profile_needs_room_for_kv() -> None:
    link = LinkCost(0.0, 1.0)
    for kv_bytes, kv_tokens in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            CostProfile("x", BUILT_IN.iteration, link, kv_bytes, kv_tokens)


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
    """And each figure is that of a measured iteration."""
    measured = MeasuredRange.of(shapes)
    assert all(measured.exceeded(shape) == () for shape in shapes)
    for name in RANGES:
        smaller = replace(measured, **{name: getattr(measured, name) / 2})
        assert not getattr(measured, name) or any(name in smaller.exceeded(shape) for shape in shapes)


def test_time_beyond_is_a_share_of_all() -> None:
    """Time that exceeds two figures counts for each, and once in all."""
    counted = TimeBeyond(RANGE)
    assert counted.extrapolation().share == 0.0
    counted.count(WITHIN, 6.0)
    counted.count(replace(WITHIN, decodes=5), 1.0)
    counted.count(replace(WITHIN, prompt_tokens=100, decodes=50, decode_context=0), 3.0)
    found = counted.extrapolation()
    assert (found.measured, found.share) == (RANGE, pytest.approx(0.4))
    assert found.shares == {"prompt_tokens": pytest.approx(0.3), "decodes": pytest.approx(0.4)}
