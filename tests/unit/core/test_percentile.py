"""Percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.percentile import nearest_rank, percentile


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_it_was_seen_and_enough_do_not_exceed_it(values: list[float], percent: int) -> None:
    """The nearest rank: the smallest value that so many percent do not exceed."""
    found = percentile(values, percent)
    assert found in values
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < percent * len(values)


def test_of_nothing_there_is_none() -> None:
    """A percentile of no samples is an error, not a zero."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@given(st.integers(1, 10**9), st.integers(0, 100))
def test_whole_percents_have_the_rank_of_integer_arithmetic(count: int, percent: int) -> None:
    """Benchmarks computed ranks in integers and the simulator in floats; recorded figures hold for both."""
    assert nearest_rank(count, percent) == max(1, -(-count * percent // 100))
