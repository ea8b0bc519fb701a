"""More work never takes less time."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import (
    BatchShape,
    IterationCost,
    LinearIterationCost,
    PiecewiseLinear,
    TableIterationCost,
)

SECONDS = st.floats(0.0, 1.0)


@st.composite
def tables(draw: st.DrawFn) -> PiecewiseLinear:
    """Draw any table."""
    steps = draw(st.lists(st.tuples(st.integers(1, 4000), SECONDS), min_size=2, max_size=6))
    at, seconds = [0.0], [draw(st.floats(0.001, 1.0))]
    for step, rise in steps:
        at.append(at[-1] + step)
        seconds.append(seconds[-1] + rise)
    return PiecewiseLinear(tuple(at[1:]), tuple(seconds[1:]))


COSTS = st.builds(LinearIterationCost, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS) | st.builds(
    TableIterationCost, tables(), tables(), SECONDS, SECONDS, st.none() | st.floats(1.0, 2.0)
)
SHAPES = st.builds(
    BatchShape, st.integers(0, 9000), st.floats(0, 1e7), st.integers(0, 300), st.integers(0, 200_000)
).map(
    # Nothing attends to anything where nothing is computed.
    lambda shape: dataclasses.replace(
        shape,
        prompt_context=shape.prompt_context if shape.prompt_tokens else 0.0,
        decode_context=shape.decode_context if shape.decodes else 0,
    )
)


@given(COSTS, SHAPES, st.integers(0, 9000), st.floats(0, 1e7), st.integers(0, 300), st.integers(0, 200_000))
def test_no_cost_falls_when_work_is_added(
    cost: IterationCost, shape: BatchShape, tokens: int, context: float, decodes: int, decode_context: int
) -> None:
    """The cost rises or stays in each dimension alone and in all together, from any shape, mixed or not."""
    prompt_tokens, all_decodes = shape.prompt_tokens + tokens, shape.decodes + decodes
    larger = BatchShape(
        prompt_tokens,
        shape.prompt_context + (context if prompt_tokens else 0.0),
        all_decodes,
        shape.decode_context + (decode_context if all_decodes else 0),
    )
    least = cost.iteration_s(shape) * (1 - 1e-9)
    for alone in (
        dataclasses.replace(shape, prompt_tokens=larger.prompt_tokens),
        dataclasses.replace(shape, decodes=larger.decodes),
        larger,
    ):
        assert cost.iteration_s(alone) >= least


@given(tables(), st.floats(0, 30_000), st.floats(0, 30_000))
def test_a_table_rises_everywhere(table: PiecewiseLinear, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= table(low) <= table(high) * (1 + 1e-9) + 1e-12
