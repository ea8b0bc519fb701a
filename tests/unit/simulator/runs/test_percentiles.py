"""Percentiles in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from spotwise.simulator.runs.percentiles import RELATIVE_ERROR, Percentiles


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
    """Without values there is neither a percentile nor a mean."""
    nothing = Percentiles()
    assert (nothing.at(50), nothing.mean, nothing.smallest) == (None, None, None)


@pytest.mark.parametrize("percent", [1, 50, 90, 99, 99.9])
def test_many_values_have_percentiles_within_the_stated_error(percent: float) -> None:
    """Whatever their size, from microseconds to hours."""
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
    """There are as many cells as the range of the values has, however many these are."""

    def cells(count: int) -> int:
        values = np.random.default_rng(2).uniform(0.01, 10.0, count)
        return len(filled(values.tolist(), exact_entries=1)._cells)

    # A cell is half a percent wide, so 1,383 of them reach from 0.01 to 10.
    assert cells(200_000) <= 1383


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(value: float) -> None:
    """An invalid duration would spoil every later percentile."""
    with pytest.raises(ValueError, match="not a finite value of at least 0"):
        Percentiles().add(value)
