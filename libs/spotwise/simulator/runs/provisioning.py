"""Which machines to buy: the best split of a design for an objective, under latency objectives and constraints.

Law: two questions, both answered by simulation alone, and by nothing of a run but whether its objectives hold.

- A rate is given: which split serves it at the least cost, or power, or with the fewest machines? For some numbers of token
  machines the fewest prompt machines that do, by bisection and only where that would be better than the best so far; then
  for numbers nearer and nearer to the best one (Splitwise, figure 12: the boundary of what holds is a valley).
- A budget is given: which split of it carries the highest rate? The rate rises and then falls as machines go from tokens to
  prompts, so the walk climbs from a first guess and halves its stride at the top.

Source: Splitwise, section 4.5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from spotwise.simulator.runs.designs import DESIGNS, Design, Split
from spotwise.simulator.runs.experiment import Case, RunSummary
from spotwise.simulator.runs.search import Grid, Limit, Search, holds_for_all, limit_of


class Objective(StrEnum):
    """What is made as small as possible at a given rate."""

    COST = "cost"
    POWER = "power"
    MACHINES = "machines"

    def of(self, design: Design, split: Split) -> float:
        """Return what a split has of it: dollars an hour, power in units of a DGX-A100, or machines."""
        if self is Objective.COST:
            return design.price_per_hour(split)
        return design.power(split) if self is Objective.POWER else split.machines


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The best split for a rate.

    Attributes:
        split: it; `None` where none holds within the bounds.
        tried: every split that was looked at, and whether its objectives held for all seeds.
    """

    split: Split | None
    tried: tuple[tuple[Split, bool], ...]


@dataclass(frozen=True, slots=True)
class BestSplit:
    """The split of a budget that carries most.

    Attributes:
        split: it.
        limit: what it carries.
        tried: limits by split, in the order of prompt machines.
    """

    split: Split
    limit: Limit
    tried: tuple[tuple[Split, Limit], ...]


def cheapest_split(case: Case, objective: Objective, seeds: Sequence[int], most: Split) -> Search[Provisioned]:
    """Search the split of a case's design that serves its rate with the least of an objective.

    Args:
        case: with the rate that must be served; its split and its seed do not matter.
        objective: what counts.
        seeds: all of which must hold.
        most: of either kind of machine. A baseline has none of the second kind.
    """
    design, case = DESIGNS[case.design], replace(case, verdict_only=True)
    tried: dict[Split, bool] = {}
    best: Split | None = None
    stride = max(1, most.token // 4)
    counts = [0] if design.token is None else list(range(stride, most.token + 1, stride))
    looked_at: dict[int, None] = {}
    while counts:
        for token in counts:
            looked_at[token] = None
            found = yield from _fewest_prompts(case, objective, seeds, token, most.prompt, best, tried)
            best = best if found is None else found
        if best is None or design.token is None:
            break
        counts = _nearby(best.token, stride, most.token, looked_at)
        while not counts and stride > 1:
            stride //= 2
            counts = _nearby(best.token, stride, most.token, looked_at)
    return Provisioned(best, tuple(sorted(tried.items(), key=lambda item: (item[0].token, item[0].prompt))))


def _nearby(token: int, stride: int, most: int, looked_at: Container[int]) -> list[int]:
    return [near for near in (token - stride, token + stride) if 1 <= near <= most and near not in looked_at]


def _fewest_prompts(
    case: Case,
    objective: Objective,
    seeds: Sequence[int],
    token: int,
    most_prompt: int,
    best: Split | None,
    tried: dict[Split, bool],
) -> Search[Split | None]:
    """Search the fewest prompt machines beside so many token machines; `None` where that is no better than `best`."""
    design = DESIGNS[case.design]
    rank = functools.partial(_rank, objective, design)
    high = most_prompt
    while best is not None and high > 0 and rank(Split(high, token)) >= rank(best):
        high -= 1
    if high == 0:
        return None
    low, candidate = 0, high  # `low` does not hold; `high` may
    while True:
        split = Split(candidate, token)
        if split not in tried:
            tried[split] = yield from holds_for_all([replace(case, split=split, seed=seed) for seed in seeds])
        if tried[split]:
            high = candidate
        elif candidate == high:
            return None
        else:
            low = candidate
        if high - low == 1:
            return Split(high, token)
        candidate = (low + high) // 2


def _rank(objective: Objective, design: Design, split: Split) -> tuple[float, int, int]:
    """Order splits by the objective; a tie goes to fewer machines, then to fewer prompt machines."""
    return objective.of(design, split), split.machines, split.prompt


def best_split(case: Case, splits: Sequence[Split], grid: Grid, seeds: Sequence[int]) -> Search[BestSplit]:
    """Search the one of several splits that carries the highest rate, from the middle one on.

    Args:
        case: its split, rate and seed do not matter.
        splits: in the order of their prompt machines.
        grid: of rates.
        seeds: over which limits are averaged.
    """
    case = replace(case, verdict_only=True)
    limits: dict[int, Limit] = {}
    here = len(splits) // 2
    stride = max(1, len(splits) // 4)
    while True:
        around = [index for index in (here, here - stride, here + stride) if 0 <= index < len(splits)]
        for index in around:
            if index not in limits:
                guess = max(limits[here].mean, grid.step) if here in limits else grid.guess
                own_grid = replace(grid, guess=min(guess, grid.highest))
                limits[index] = yield from limit_of(replace(case, split=splits[index]), own_grid, seeds)
        top = max(around, key=lambda index: (limits[index].mean, index == here, -index))
        if top != here:
            here = top
        elif stride > 1:
            stride //= 2
        else:
            break
    return BestSplit(splits[here], limits[here], tuple((splits[index], limits[index]) for index in sorted(limits)))


def splits_within(design: Design, budget: float, measure: Callable[[Split], float]) -> list[Split]:
    """Return the splits that use a budget up: for each number of prompt machines, as many token machines as it allows.

    Args:
        design: for which.
        budget: in the unit of `measure`.
        measure: what a split takes of it; it must grow with each machine.

    Raises:
        ValueError: the budget does not allow a machine of each kind.
    """
    token = 0 if design.token is None else 1
    if measure(Split(1, token)) > budget:
        raise ValueError(f"{budget:g} is too little for {design.name}")
    prompt = 1
    while measure(Split(prompt + 1, token)) <= budget:
        prompt += 1
    if design.token is None:
        return [Split(prompt)]
    splits = []
    for number in range(prompt, 0, -1):
        while measure(Split(number, token + 1)) <= budget:
            token += 1
        splits.append(Split(number, token))
    return splits[::-1]


def heat_map(case: Case, prompts: Sequence[int], tokens: Sequence[int]) -> Search[list[list[RunSummary]]]:
    """Run every split of a rectangle, rows by token machines, columns by prompt machines (Splitwise, figure 12)."""
    splits = [[Split(prompt, token) for prompt in prompts] for token in tokens]
    runs = yield [replace(case, split=split) for row in splits for split in row]
    return [list(runs[row * len(prompts) : (row + 1) * len(prompts)]) for row in range(len(tokens))]
