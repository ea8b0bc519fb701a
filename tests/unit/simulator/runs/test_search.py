"""The highest rate at which objectives hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.search import Grid, Limit, highest_rate, limit_of, runs_that_hold
from tests.unit.simulator.runs.summaries import Oracle, case


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40), st.none() | st.integers(1, 8))
def test_the_last_rate_that_holds_is_found(last_step: int, guess: int, highest: int, stride: int | None) -> None:
    """Wherever it is, wherever the search begins, and never beyond the highest that may be looked at."""
    grid = Grid(10.0, 10.0 * max(guess, highest), 10.0 * guess)
    oracle = Oracle(lambda of: of.rate is not None and of.rate <= 10.0 * last_step)
    rate, runs = drive({"": highest_rate(case(), grid, stride)}, 1, run=oracle.run)[""]
    assert rate == min(10.0 * last_step, grid.highest)
    assert [run.case for run in runs] == oracle.cases
    assert len(set(oracle.cases)) == len(oracle.cases)
    assert len(oracle.cases) <= 2 * math.log2(max(guess, highest) + 1) + 2


def test_each_seed_has_a_limit_of_its_own() -> None:
    limits = {1: 50.0, 2: 60.0, 3: 70.0}
    oracle = Oracle(lambda of: of.rate is not None and of.rate <= limits[of.seed])
    limit = drive({"": limit_of(case(), Grid(), (1, 2, 3))}, 1, run=oracle.run)[""]
    assert limit.rates == (50.0, 60.0, 70.0)
    assert limit.mean == 60.0
    assert limit.half_width == pytest.approx(4.303 * 10 / math.sqrt(3))
    rates = [run.case.rate for run in limit.runs]
    assert rates == sorted(rates, key=lambda rate: rate or 0.0)


def test_a_later_seed_is_searched_near_the_first() -> None:
    """Seeds differ by a step or two: rates far above the limit cost most, and say nothing."""
    limits = {1: 110.0, 2: 110.0, 3: 100.0, 4: 130.0}
    oracle = Oracle(lambda of: of.rate is not None and of.rate <= limits[of.seed])
    assert drive({"": limit_of(case(), Grid(), (1, 2, 3, 4))}, 1, run=oracle.run)[""].rates == tuple(limits.values())
    tried = {seed: [each.rate for each in oracle.cases if each.seed == seed] for seed in (2, 3, 4)}
    assert tried == {2: [110.0, 120.0], 3: [110.0, 100.0], 4: [110.0, 120.0, 140.0, 130.0]}


def test_a_single_seed_has_no_confidence_interval() -> None:
    assert Limit((50.0,), ()).half_width is None


def test_the_first_seed_that_fails_spares_the_rest() -> None:
    """Further seeds could not change the answer."""
    oracle = Oracle(lambda of: of.seed != 2)
    cases = [case(rate=float(rate)) for rate in (1, 2, 3)]
    assert [run.case for run in drive({"": runs_that_hold(cases)}, 1, run=oracle.run)[""]] == cases
    failing = Oracle(lambda of: of.rate != 2.0)
    assert drive({"": runs_that_hold(cases)}, 1, run=failing.run) == {"": []}
    assert [each.rate for each in failing.cases] == [1.0, 2.0]


@pytest.mark.parametrize("grid", [(0.0, 10.0, 5.0), (10.0, 100.0, 5.0), (10.0, 50.0, 60.0)])
def test_a_grid_that_is_none_is_refused(grid: tuple[float, float, float]) -> None:
    """A grid is refused unless step <= guess <= highest."""
    with pytest.raises(ValueError, match="step <= guess <= highest"):
        Grid(*grid)
