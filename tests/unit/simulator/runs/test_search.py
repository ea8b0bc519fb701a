"""Searches for the highest rate and the best split, and how they share the processors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import BASELINE_A100, BASELINE_H100, SPLITWISE_HA, SPLITWISE_HH, Split
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.provisioning import Objective, best_split, cheapest_split, splits_within
from spotwise.simulator.searches.search import Grid, Search, highest_rate, limit_of, runs_that_hold
from tests.unit.simulator.runs.summaries import Oracle, case, summary


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


def test_the_first_seed_that_fails_spares_the_rest() -> None:
    oracle = Oracle(lambda of: of.seed != 2)
    cases = [case(rate=float(rate)) for rate in (1, 2, 3)]
    assert [run.case for run in drive({"": runs_that_hold(cases)}, 1, run=oracle.run)[""]] == cases
    failing = Oracle(lambda of: of.rate != 2.0)
    assert drive({"": runs_that_hold(cases)}, 1, run=failing.run) == {"": []}
    assert [each.rate for each in failing.cases] == [1.0, 2.0]


@pytest.mark.parametrize("grid", [(0.0, 10.0, 5.0), (10.0, 100.0, 5.0), (10.0, 50.0, 60.0)])
def test_a_grid_that_is_none_is_refused(grid: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="step <= guess <= highest"):
        Grid(*grid)


def holds_up_to_90(of: Case) -> RunSummary:
    return summary(of, holds=(of.rate or 0.0) <= 90.0)


def again(of: Case, times: int) -> Search[list[Case]]:
    """Search with the same run several times."""
    answered: list[Case] = []
    for _ in range(times):
        (run,) = yield [of]
        answered.append(run.case)
    return answered


def breaks(of: Case) -> RunSummary:
    raise RuntimeError(f"cannot run {of.cluster.name}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_back_by_name(jobs: int) -> None:
    searches = {
        "fine": limit_of(case("Splitwise-HH"), Grid(5.0), (1, 2)),
        "coarse": limit_of(case("Splitwise-AA"), Grid(20.0), (1,)),
    }
    finished: list[Case] = []
    results = drive(searches, jobs, holds_up_to_90, lambda run: finished.append(run.case))
    assert [(name, limit.rates) for name, limit in results.items()] == [("fine", (90.0, 90.0)), ("coarse", (80.0,))]
    assert len(finished) == len(set(finished)) == sum(len(limit.runs) for limit in results.values())


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_breaks_a_run_ends_them_all(jobs: int) -> None:
    with pytest.raises(RuntimeError, match="cannot run Splitwise-HH"):
        drive({"": limit_of(case(), Grid(), (1,))}, jobs, run=breaks)


def test_a_run_that_two_searches_want_happens_once() -> None:
    oracle = Oracle(lambda of: (of.rate or 0.0) <= 90.0)
    searches = {name: limit_of(case(), Grid(), (1,)) for name in ("one", "other")}
    one, other = drive(searches, 1, run=oracle.run).values()
    assert one == other
    assert len(oracle.cases) == len(set(oracle.cases))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_repeated_case_of_a_search_is_known(jobs: int) -> None:
    finished: list[Case] = []
    results = drive({"": again(case(), 3)}, jobs, holds_up_to_90, lambda run: finished.append(run.case))
    assert results == {"": [case()] * 3}
    assert finished == [case()]


def needs(split: Split, prompts: float, tokens: float) -> bool:
    """A cluster with work for so many machines of each kind, where idle token machines help out with half their strength."""
    spare = max(0.0, split.token - tokens)
    return split.token >= tokens and split.prompt + spare / 2 >= prompts


@settings(max_examples=60)
@given(st.integers(1, 20), st.integers(1, 12), st.sampled_from(Objective))
def test_the_cheapest_split_that_holds_is_found(prompts: int, tokens: int, objective: Objective) -> None:
    """The search finds the cheapest split of an exhaustive search, with less than a quarter of its runs."""
    of, most = case("Splitwise-HA"), Split(24, 16)
    design = SPLITWISE_HA
    oracle = Oracle(lambda each: needs(each.split, prompts, tokens))
    found = drive({"": cheapest_split(of, design, objective, (0,), most)}, 1, run=oracle.run)[""]
    every = [Split(prompt, token) for prompt in range(1, most.prompt + 1) for token in range(1, most.token + 1)]
    least = min(objective.of(design, split) for split in every if needs(split, prompts, tokens))
    assert found.split is not None
    assert objective.of(design, found.split) == pytest.approx(least)
    assert len(oracle.cases) < len(every) / 4
    assert dict(found.tried) == {each.split: needs(each.split, prompts, tokens) for each in oracle.cases}
    assert [run.case.split for run in found.runs] == [found.split]


def test_a_baseline_has_one_kind_of_machine() -> None:
    oracle = Oracle(lambda each: each.split.prompt >= 13)
    search = cheapest_split(case("Baseline-A100"), BASELINE_A100, Objective.COST, (0,), Split(40))
    assert drive({"": search}, 1, run=oracle.run)[""].split == Split(13)


def test_a_rate_that_no_split_serves_has_no_answer() -> None:
    oracle = Oracle(lambda each: False)
    found = drive({"": cheapest_split(case(), SPLITWISE_HH, Objective.POWER, (0,), Split(8, 8))}, 1, run=oracle.run)[""]
    assert found.split is None
    assert found.runs == ()
    assert not any(holds for _, holds in found.tried)


def test_every_seed_must_hold() -> None:
    oracle = Oracle(lambda each: each.split.prompt >= (10 if each.seed == 2 else 5))
    search = cheapest_split(case("Baseline-H100"), BASELINE_H100, Objective.MACHINES, (1, 2), Split(30))
    assert drive({"": search}, 1, run=oracle.run)[""].split == Split(10)


@given(st.integers(1, 30), st.data())
def test_the_split_that_carries_most_is_found(count: int, data: st.DataObject) -> None:
    peak = data.draw(st.integers(0, count - 1))
    splits = [Split(number + 1, count - number) for number in range(count)]
    oracle = Oracle(lambda each: (each.rate or 0.0) <= 300 - 10 * abs(each.split.prompt - 1 - peak))
    search = best_split(case(), SPLITWISE_HH, splits, Grid(), (0,))
    found = drive({"": search}, 1, run=oracle.run)[""]
    assert found.split == splits[peak]
    assert found.limit.mean == 300.0
    assert [split for split, _ in found.tried] == sorted((split for split, _ in found.tried), key=lambda s: s.prompt)


def test_splits_use_a_budget_up() -> None:
    power = SPLITWISE_HA.power
    splits = splits_within(SPLITWISE_HA, 20.0, power)
    assert [split.prompt for split in splits] == list(range(1, len(splits) + 1))
    for split in splits:
        assert power(split) <= 20.0 < power(Split(split.prompt, split.token + 1))
    assert power(Split(len(splits) + 1, 1)) > 20.0
    assert splits_within(BASELINE_H100, 20.0, BASELINE_H100.power) == [Split(11)]
    with pytest.raises(ValueError, match="too little"):
        splits_within(SPLITWISE_HA, 2.0, power)
