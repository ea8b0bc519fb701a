"""Iteration costs as the published simulator has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.costs.cost_model import BatchShape, pairs
from spotwise.simulator.costs.hardware import BLOOM_176B, LLAMA2_70B, LanguageModel
from spotwise.simulator.costs.machine_costs import (
    A100,
    H100,
    H100_CAPPED,
    DecodeModel,
    published_built_in_costs,
    published_costs_from,
)
from spotwise.simulator.costs.profile_fit import ProfileError
from spotwise.simulator.costs.published_costs import (
    InterpolatedTable,
    PublishedIterationCost,
    fit_published,
    fit_published_by_batch,
)
from tests.unit.simulator.costs.profile_rows import lines, row, write


def token_s(batch_size: int, context: int) -> float:
    return 0.045 + 3e-4 * batch_size + 5e-7 * context


ROWS = lines(lambda prompt, batch: 0.05 + 2e-4 * prompt * batch, token_s)


def test_a_table_falls_where_measurements_fall() -> None:
    """Medians are kept as they are, and the line of the first two goes on below them, that of the last two above."""
    rows = [row(128, 1, seconds, 0.03) for seconds in (0.06, 0.05, 9.0)] + [
        row(256, 1, 0.05, 0.02),
        row(512, 1, 0.07, 0.04),
    ]
    cost = fit_published(rows)
    assert cost.prompt.seconds == pytest.approx((0.06, 0.05, 0.07))
    assert [cost.prompt(tokens) for tokens in (0, 192, 768)] == pytest.approx([0.07, 0.055, 0.09])
    assert cost.decode(1) == pytest.approx(0.03 + 0.01 * 127 / 128)


def test_decodes_read_the_table_of_tokens_at_their_number() -> None:
    """Decodes take about as long as behind the shortest prompt, in any batch."""
    cost = fit_published(ROWS)
    alone, crowd = (cost.iteration_s(BatchShape(decodes=count, decode_context=900 * count)) for count in (1, 64))
    assert crowd == pytest.approx(alone, rel=0.01)
    assert crowd < 0.75 * token_s(64, 64 * 576)


def test_both_phases_in_one_iteration_take_a_tenth_longer() -> None:
    """Prompts and decodes take 1.1 times the prompt time of all tokens; prompts alone their own, nothing no time."""
    cost = fit_published(ROWS)
    assert cost.iteration_s(BatchShape(1000, pairs(0, 1000), 24, 24_000)) == pytest.approx(1.1 * cost.prompt(1024))
    assert cost.iteration_s(BatchShape(1000, pairs(0, 1000))) == cost.prompt(1000)
    assert cost.iteration_s(BatchShape()) == 0.0


def test_one_change_times_decodes_by_requests() -> None:
    """Decodes are timed by requests, as measured behind prompts of 512 tokens; prompts stay as published."""
    cost = fit_published_by_batch(ROWS)
    assert cost.iteration_s(BatchShape(decodes=64, decode_context=1)) == pytest.approx(token_s(64, 64 * 576))
    assert cost.prompt == fit_published(ROWS).prompt


@pytest.mark.parametrize("decode_model", [DecodeModel.PUBLISHED, DecodeModel.BY_BATCH])
def test_a_capped_machine_has_slower_prompts_there_too(tmp_path: Path, decode_model: DecodeModel) -> None:
    """Prompts of a capped machine take 1.3 times as long, decodes do not."""
    path = write(
        [each for gpu in (A100, H100) for each in lines(lambda p, b: 1e-4 * p * b, token_s, gpu)], tmp_path / "p.csv"
    )
    costs = published_costs_from(path, BLOOM_176B, decode_model)
    assert costs[H100_CAPPED].prompt(3000) == pytest.approx(1.3 * costs[H100].prompt(3000))
    assert costs[H100_CAPPED].decode == costs[H100].decode


@pytest.mark.parametrize("model", [BLOOM_176B, LLAMA2_70B])
def test_costs_that_come_along_are_positive(model: LanguageModel) -> None:
    """Every built-in table gives a positive time from a single token to far beyond the largest batch."""
    for decode_model in (DecodeModel.PUBLISHED, DecodeModel.BY_BATCH):
        for cost in published_built_in_costs(model, decode_model).values():
            assert min(table(tokens) for table in (cost.prompt, cost.decode) for tokens in (1, 60, 512, 100_000)) > 0.02


def test_llamas_small_prompts_take_longer_on_an_h100() -> None:
    """The profile's prompt time of Llama2-70B falls from 128 to 256 tokens, and the published table with it."""
    prompt = published_built_in_costs(LLAMA2_70B, DecodeModel.PUBLISHED)[H100].prompt
    assert prompt(64) > prompt(128) > prompt(256) < prompt(512)


@pytest.mark.parametrize(
    ("at", "seconds"),
    [((1,), (1.0,)), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 1), (1.0, 2.0)), ((1, 2), (0.0, 1.0))],
)
def test_a_table_without_an_order_is_refused(at: tuple[float, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a table"):
        InterpolatedTable(at, seconds)


def test_too_few_measurements_make_no_table() -> None:
    """A line needs two points."""
    with pytest.raises(ProfileError, match="two sizes at least"):
        fit_published([row(512, 1, 0.1, 0.04)])


@given(
    st.lists(
        st.tuples(st.integers(1, 10_000), st.floats(0.01, 10)), min_size=2, max_size=9, unique_by=lambda point: point[0]
    ),
    st.integers(0, 8),
    st.floats(0, 1),
)
def test_between_two_measurements_a_table_is_their_line(
    points: list[tuple[int, float]], place: int, share: float
) -> None:
    """At a measurement the table has its time, between two a time on their line; never less than nothing."""
    points = sorted(points)
    table = InterpolatedTable(tuple(map(float, dict(points))), tuple(dict(points).values()))
    (x0, y0), (x1, y1) = points[place % (len(points) - 1) :][:2]
    assert table(x0 + share * (x1 - x0)) == pytest.approx(y0 + share * (y1 - y0))
    cost = PublishedIterationCost(table, table)
    assert min(cost.iteration_s(BatchShape(tokens, 0.0, 1)) for tokens in (1, 20_000)) >= 0.0
