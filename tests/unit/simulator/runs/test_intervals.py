"""Means over seeds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.simulator.runs.intervals import MeanInterval, SeedMeans, mean_interval
from spotwise.simulator.runs.run_summary import RunSummary
from tests.unit.simulator.runs.summaries import case, summary


def approximately(mean: float, half_width: float) -> Any:
    """An interval, but for rounding."""
    return MeanInterval(pytest.approx(mean), pytest.approx(half_width))  # type: ignore[arg-type]


def run(seed: int, ttft_s: float | None, *, holds: bool = True) -> RunSummary:
    """A run with a mean TTFT, or without any answer."""
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
    """However many there are."""
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
