"""Searches the best split of a design under SLOs (Splitwise, section 4.5), from the verdicts of simulated runs.

- For a rate, the split of least cost, power or machines: bisect the fewest prompt machines for some numbers of token machines
  where that can beat the best so far, then approach the best number (the boundary of feasible splits is a valley: figure 12).
- For a budget, the split with the highest rate: it rises, then falls as machines move from tokens to prompts, so climb from a
  first guess and halve the stride at the top.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from spotwise.simulator.runs.case import Case
from spotwise.simulator.runs.clusters import Design, Split
from spotwise.simulator.runs.run_summary import RunSummary
from spotwise.simulator.searches.search import Grid, Limit, Search, limit_of, runs_that_hold


class Objective(StrEnum):
    """Quantity to minimise at a given rate."""

    COST = "cost"
    POWER = "power"
    MACHINES = "machines"

    def of(self, design: Design, split: Split) -> float:
        """Return a split's dollars an hour, power in units of a DGX-A100, or machines."""
        if self is Objective.COST:
            return design.price_per_hour(split)
        return design.power(split) if self is Objective.POWER else split.machines


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The best split for a rate.

    Attributes:
        split: `None` where none holds within the bounds.
        tried: every simulated split, and whether its SLOs held for all seeds.
        runs: runs of the split.
    """

    split: Split | None
    tried: tuple[tuple[Split, bool], ...]
    runs: tuple[RunSummary, ...] = ()


@dataclass(frozen=True, slots=True)
class BestSplit:
    """The split of a budget with the highest limit; tried splits in the order of prompt machines."""

    split: Split
    limit: Limit
    tried: tuple[tuple[Split, Limit], ...]


def cheapest_split(
    case: Case, design: Design, objective: Objective, seeds: Sequence[int], most: Split
) -> Search[Provisioned]:
    """Search the split of a design that serves a case's rate with the least of an objective; the case's cluster and seed are
    ignored. `most` bounds the machines of each kind; the runs of all seeds must hold."""
    case = replace(case, verdict_only=True)
    tried: dict[Split, list[RunSummary]] = {}
    best: Split | None = None
    stride = max(1, most.token // 4)
    counts = [0] if design.token is None else list(range(stride, most.token + 1, stride))
    visited: dict[int, None] = {}
    while counts:
        for token in counts:
            visited[token] = None
            found = yield from _fewest_prompts(case, design, objective, seeds, token, most.prompt, best, tried)
            best = best if found is None else found
        if best is None or design.token is None:
            break
        counts = _nearby(best.token, stride, most.token, visited)
        while not counts and stride > 1:
            stride //= 2
            counts = _nearby(best.token, stride, most.token, visited)
    splits = sorted(tried, key=lambda split: (split.token, split.prompt))
    runs = () if best is None else tuple(tried[best])
    return Provisioned(best, tuple((split, bool(tried[split])) for split in splits), runs)


def _nearby(token: int, stride: int, most: int, visited: Container[int]) -> list[int]:
    return [near for near in (token - stride, token + stride) if 1 <= near <= most and near not in visited]


def _fewest_prompts(
    case: Case,
    design: Design,
    objective: Objective,
    seeds: Sequence[int],
    token: int,
    most_prompt: int,
    best: Split | None,
    tried: dict[Split, list[RunSummary]],
) -> Search[Split | None]:
    """`None` where the fewest prompt machines do not beat `best`; `tried` has no runs of splits that do not hold."""
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
            tried[split] = yield from runs_that_hold(_seeded(case, design, split, seeds))
        if tried[split]:
            high = candidate
        elif candidate == high:
            return None
        else:
            low = candidate
        if high - low == 1:
            return Split(high, token)
        candidate = (low + high) // 2


def _seeded(case: Case, design: Design, split: Split, seeds: Sequence[int]) -> list[Case]:
    return [replace(case, cluster=design.cluster(split), seed=seed) for seed in seeds]


def _rank(objective: Objective, design: Design, split: Split) -> tuple[float, int, int]:
    return objective.of(design, split), split.machines, split.prompt


def best_split(
    case: Case, design: Design, splits: Sequence[Split], grid: Grid, seeds: Sequence[int]
) -> Search[BestSplit]:
    """Search a design's split with the highest rate (mean over seeds), from the middle one on; the case's cluster, rate and
    seed are ignored, and `splits` is in the order of prompt machines."""
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
                limits[index] = yield from limit_of(
                    replace(case, cluster=design.cluster(splits[index])), own_grid, seeds
                )
        top = max(around, key=lambda index: (limits[index].mean, index == here, -index))
        if top != here:
            here = top
        elif stride > 1:
            stride //= 2
        else:
            break
    return BestSplit(splits[here], limits[here], tuple((splits[index], limits[index]) for index in sorted(limits)))


def splits_within(design: Design, budget: float, measure: Callable[[Split], float]) -> list[Split]:
    """Return the splits that exhaust a budget: for each number of prompt machines, the most token machines. `measure` is a
    split's use of the budget and grows with each machine. Raises ValueError if the budget does not cover a machine of each
    kind."""
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
