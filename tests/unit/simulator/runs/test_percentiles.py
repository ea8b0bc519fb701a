"""Percentiles in bounded memory, and means over seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.simulator.runs.intervals import MeanInterval, SeedMeans, mean_interval
from spotwise.simulator.runs.percentiles import RELATIVE_ERROR, Percentiles
from spotwise.simulator.runs.run_summary import RunSummary
from tests.unit.simulator.runs.summaries import case, summary


def filled(values: list[float], exact_entries: int = 100) -> Percentiles:
    percentiles = Percentiles(exact_entries)
    for value in values:
        percentiles.add(value)
    return percentiles


def test_few_values_have_exact_percentiles() -> None:
    """Percentiles of few values are by nearest rank: each is a value that was added."""
    percentiles = filled([4.0, 1.0, 3.0, 2.0])
    assert [percentiles.at(percent) for percent in (0, 25, 26, 50, 75, 76, 100)] == [1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0]
    assert (percentiles.mean, percentiles.smallest, percentiles.largest) == (2.5, 1.0, 4.0)


def test_nothing_has_no_percentile() -> None:
    nothing = Percentiles()
    assert (nothing.at(50), nothing.mean, nothing.smallest) == (None, None, None)


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_many_values_have_percentiles_within_the_stated_error(percent: float) -> None:
    values = np.exp(np.random.default_rng(1).uniform(np.log(1e-6), np.log(1e4), 30_000))
    percentiles = filled(values.tolist())
    rank = int(np.ceil(len(values) * percent / 100)) - 1
    assert percentiles.at(percent) == pytest.approx(np.sort(values)[rank], rel=1.0001 * RELATIVE_ERROR)


def test_percentiles_stay_within_what_was_seen() -> None:
    """A cell's middle may be outside; no answer is."""
    percentiles = filled([1.0] * 200)
    assert [percentiles.at(percent) for percent in (0, 50, 100)] == [1.0, 1.0, 1.0]
    assert filled([0.0] * 200).at(99) == 0.0


@pytest.mark.parametrize("exact_entries", [1, 1000])
def test_a_value_may_count_many_times(exact_entries: int) -> None:
    percentiles = Percentiles(exact_entries)
    for value, count in ((1.0, 98), (10.0, 1), (20.0, 1)):
        percentiles.add(value, count)
    assert percentiles.count == 100
    assert percentiles.at(98) == pytest.approx(1.0, rel=RELATIVE_ERROR)
    assert percentiles.at(99) == pytest.approx(10.0, rel=RELATIVE_ERROR)
    assert percentiles.at(99.5) == pytest.approx(20.0, rel=RELATIVE_ERROR)


def test_memory_does_not_grow_with_the_values() -> None:
    def cells(count: int) -> int:
        values = np.random.default_rng(2).uniform(0.01, 10.0, count)
        return len(filled(values.tolist(), exact_entries=1)._cells)

    # A cell is half a percent wide, so 1,383 of them reach from 0.01 to 10.
    assert cells(200_000) <= 1383


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a finite value of at least 0"):
        Percentiles().add(value)


def approximately(mean: float, half_width: float) -> Any:
    return MeanInterval(pytest.approx(mean), pytest.approx(half_width))  # type: ignore[arg-type]


def run(seed: int, ttft_s: float | None, *, holds: bool = True) -> RunSummary:
    ttft = {} if ttft_s is None else {"mean": ttft_s}
    return replace(
        summary(replace(case(), seed=seed), holds=holds), latencies_s={"ttft": ttft}, requests_per_s=2.0 * seed
    )


def test_an_interval_is_of_students_t() -> None:
    """Of three values: t with two degrees of freedom; of one value nothing is known."""
    assert mean_interval([1.0, 2.0, 3.0]) == approximately(2.0, 4.303 / math.sqrt(3))
    assert mean_interval([5.0]) == MeanInterval(5.0, None)


@given(st.floats(-1e3, 1e3), st.integers(2, 60))
def test_equal_values_are_certain(value: float, count: int) -> None:
    found = mean_interval([value] * count)
    assert found.mean == pytest.approx(value)
    assert found.half_width == pytest.approx(0.0, abs=1e-9)


@given(st.integers(2, 30))
def test_more_seeds_narrow_the_interval(count: int) -> None:
    narrow, wide = mean_interval([0.0, 1.0] * (count + 1)), mean_interval([0.0, 1.0] * count)
    assert narrow.half_width is not None and wide.half_width is not None
    assert narrow.half_width < wide.half_width


def test_figures_are_means_of_the_runs_that_all_have_them() -> None:
    means = SeedMeans((run(1, 0.1), run(2, 0.3, holds=False)))
    assert (means.holding, means.broken) == (1, ["ttft p50"])
    assert means.latency_s("ttft", "mean") == approximately(0.2, 12.706 * 0.1)
    assert means.latency_s("ttft", "p50") is None
    assert means.slowdown("ttft", 50) == approximately(2.0, 12.706)
    assert means.slowdown("itl", 50) is None
    assert means.over(lambda each: each.requests_per_s) == approximately(3.0, 12.706)
    assert SeedMeans((run(1, 0.1), run(2, None))).latency_s("ttft", "mean") is None
