"""What iterations and transfers take."""

from __future__ import annotations

import pytest

from spotwise.core.costs.batching import Batch, BatchRow
from spotwise.core.costs.cost_model import (
    BatchShape,
    LinearIterationCost,
    LinkCost,
    PiecewiseLinear,
    TableIterationCost,
    pairs,
)

PROMPT = PiecewiseLinear((100, 200, 400), (1.0, 2.0, 5.0))
DECODE = PiecewiseLinear((1, 10, 20), (0.5, 0.6, 0.9))


def table(mixed_factor: float | None = None) -> TableIterationCost:
    return TableIterationCost(PROMPT, DECODE, 1e-4, 1e-3, mixed_factor)


def test_a_batch_has_the_shape_of_its_rows() -> None:
    rows = (BatchRow("a", 0, 10, ()), BatchRow("b", 20, 4, ()), BatchRow("c", 7, 1, ()), BatchRow("d", 30, 1, ()))
    assert BatchShape.of(Batch(rows)) == BatchShape(14, 10 * 5 + 4 * 22, 2, 8 + 31)


def test_a_prompt_of_one_token_is_no_decode() -> None:
    assert BatchShape.of(Batch((BatchRow("a", 0, 1, ()),))) == BatchShape(1, 0.5, 0, 0)


def test_pairs_of_parts_add_up_to_those_of_the_whole() -> None:
    """A prompt attends to as much, in how many parts it may be computed."""
    assert pairs(0, 100) + pairs(100, 50) + pairs(150, 1) == pairs(0, 151)


def test_a_linear_cost_is_a_sum() -> None:
    cost = LinearIterationCost(1.0, 0.1, 0.01, 0.2, 0.001)
    assert cost.iteration_s(BatchShape(10, 50.0, 3, 100)) == pytest.approx(1 + 1 + 0.5 + 0.6 + 0.1)


@pytest.mark.parametrize("cost", [LinearIterationCost(1.0, 0.1, 0.01, 0.2, 0.001), table(), table(1.1)])
def test_nothing_takes_no_time(cost: LinearIterationCost | TableIterationCost) -> None:
    """An empty shape costs nothing, not even an iteration's fixed time."""
    assert cost.iteration_s(BatchShape()) == 0.0


def test_a_table_continues_as_its_first_and_last_line() -> None:
    """Beyond its points the table continues its first and last line, but not below 0."""
    assert [PROMPT(at) for at in (100, 150, 200, 300, 400, 600)] == [1.0, 1.5, 2.0, 3.5, 5.0, 8.0]
    assert (PROMPT(50), PROMPT(0)) == (0.5, 0.0)
    assert PiecewiseLinear((10, 20), (1.0, 5.0))(1) == 0.0


def test_prompts_cost_their_tokens_and_what_these_attend_to() -> None:
    assert table().iteration_s(BatchShape(200, pairs(0, 200))) == pytest.approx(2.0 + 2.0)
    assert table().iteration_s(BatchShape(200, 2 * pairs(0, 100))) == pytest.approx(2.0 + 1.0)


def test_decodes_cost_their_number_and_their_context() -> None:
    assert table().iteration_s(BatchShape(decodes=10, decode_context=500)) == pytest.approx(0.6 + 0.5)


def test_a_mixed_iteration_computes_all_tokens_at_once() -> None:
    """Decodes beside a long prompt add their tokens and their context."""
    shape = BatchShape(190, 0.0, 10, 500)
    assert table().iteration_s(shape) == pytest.approx(2.0 + 0.5)


def test_a_short_prompt_beside_many_decodes_waits_for_these() -> None:
    """A mixed iteration takes no less than its decodes would alone."""
    assert table().iteration_s(BatchShape(1, 0.0, 20, 0)) == pytest.approx(0.9)


def test_a_published_mixed_iteration_is_its_tokens_times_a_factor() -> None:
    """The published simulator knows no other difference."""
    assert table(1.1).iteration_s(BatchShape(190, 0.0, 10, 0)) == pytest.approx(2.0 * 1.1)
    assert table(1.1).iteration_s(BatchShape(200, 0.0, 0, 0)) == pytest.approx(2.0)


def test_a_transfer_takes_latency_and_bytes() -> None:
    link = LinkCost(0.5, 100.0)
    assert (link.transfer_s(50), link.transfer_s(0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("at", "seconds", "why"),
    [
        ((1,), (1.0,), "two at least"),
        ((1, 2), (1.0,), "as many"),
        ((2, 1), (1.0, 2.0), "ascend"),
        ((1, 1), (1.0, 2.0), "ascend"),
        ((1, 2), (2.0, 1.0), "not fall"),
        ((1, 2), (0.0, 1.0), "positive"),
    ],
)
def test_a_table_that_is_none_is_refused(at: tuple[float, ...], seconds: tuple[float, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PiecewiseLinear(at, seconds)


def test_costs_below_nothing_are_refused() -> None:
    """Costs below 0 would let time run backwards."""
    with pytest.raises(ValueError, match="less than 0 s"):
        TableIterationCost(PROMPT, DECODE, -1.0)
    with pytest.raises(ValueError, match="prompts alone"):
        TableIterationCost(PROMPT, DECODE, mixed_factor=0.9)
