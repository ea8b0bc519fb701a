"""The best split of a design."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwise.simulator.runs.clusters import BASELINE_A100, BASELINE_H100, SPLITWISE_HA, SPLITWISE_HH, Split
from spotwise.simulator.searches.parallel import drive
from spotwise.simulator.searches.provisioning import Objective, best_split, cheapest_split, splits_within
from spotwise.simulator.searches.search import Grid
from tests.unit.simulator.runs.summaries import Oracle, case


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
    """Wherever among however many it is."""
    peak = data.draw(st.integers(0, count - 1))
    splits = [Split(number + 1, count - number) for number in range(count)]
    oracle = Oracle(lambda each: (each.rate or 0.0) <= 300 - 10 * abs(each.split.prompt - 1 - peak))
    search = best_split(case(), SPLITWISE_HH, splits, Grid(), (0,))
    found = drive({"": search}, 1, run=oracle.run)[""]
    assert found.split == splits[peak]
    assert found.limit.mean == 300.0
    assert [split for split, _ in found.tried] == sorted((split for split, _ in found.tried), key=lambda s: s.prompt)


def test_splits_use_a_budget_up() -> None:
    """One more machine of either kind would be too much, and each has one of each kind."""
    power = SPLITWISE_HA.power
    splits = splits_within(SPLITWISE_HA, 20.0, power)
    assert [split.prompt for split in splits] == list(range(1, len(splits) + 1))
    for split in splits:
        assert power(split) <= 20.0 < power(Split(split.prompt, split.token + 1))
    assert power(Split(len(splits) + 1, 1)) > 20.0
    assert splits_within(BASELINE_H100, 20.0, BASELINE_H100.power) == [Split(11)]
    with pytest.raises(ValueError, match="too little"):
        splits_within(SPLITWISE_HA, 2.0, power)
