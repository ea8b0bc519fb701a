"""Rounds of a comparison: the order of its sides, and the medians and ratios of all rounds."""

from __future__ import annotations

import asyncio
import functools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Console

from spotwise.cli.bench.load import RoundMeasurements, StreamShape, run_round
from spotwise.cli.bench.report import ReportRow, Target, progress_bar

Side = TypeVar("Side")


def in_order_of_round(number: int, sides: Sequence[Side]) -> tuple[Side, ...]:
    """The sides in their order of that round, from 1: A B, then B A, so that neither always gets the warmer machine."""
    return tuple(sides) if number % 2 else tuple(reversed(sides))


def run_rounds(
    console: Console, url: str, shape: StreamShape, rounds: int, sides: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[RoundMeasurements]]:
    """Run all sides in each round, with a progress bar.

    Args:
        shape: load of every round; each has a seed of its own, so that nothing of its prompts is cached.
        sides: further arguments of `run_round`, by the side's name.
    """
    measured: dict[str, list[RoundMeasurements]] = {side: [] for side in sides}
    with progress_bar(console) as progress:
        task = progress.add_task(", ".join(sides), total=rounds * len(sides) * shape.streams * shape.requests)
        answered = functools.partial(progress.advance, task)
        for number in range(1, rounds + 1):
            for turn, side in enumerate(in_order_of_round(number, list(sides))):
                fresh = replace(shape, seed=shape.seed + len(sides) * number + turn)
                measured[side].append(asyncio.run(run_round(url, fresh, answered, **sides[side])))
    return measured


def medians_ms(rounds: Sequence[RoundMeasurements]) -> tuple[list[float], list[float]]:
    """Return the medians of TPOT and of TTFT of each round."""
    return (
        [1000 * statistics.median(each.tpot_s) for each in rounds],
        [1000 * statistics.median(each.ttft_s) for each in rounds],
    )


def row_of_rounds(name: str, ours: Sequence[float], theirs: Sequence[float], target: Target | None = None) -> ReportRow:
    """Medians over rounds that measured both sides; ratios are taken within a round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return ReportRow(
        name, statistics.median(ours), statistics.median(theirs), target, spread_of(ours), spread_of(ratios)
    )


def spread_of(values: Collection[float]) -> tuple[float, float] | None:
    """Smallest and largest of several rounds; None for a single round."""
    return (min(values), max(values)) if len(values) > 1 else None
