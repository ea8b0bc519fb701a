"""Rounds of a comparison: the order of its sides, and the medians and ratios of all rounds."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from typing import TypeVar

from spotwise.cli.bench.report import ReportRow, Target

Side = TypeVar("Side")


def in_order_of_round(number: int, sides: Sequence[Side]) -> tuple[Side, ...]:
    """The sides in their order of that round, from 1: A B, then B A, so that neither always gets the warmer machine."""
    return tuple(sides) if number % 2 else tuple(reversed(sides))


def row_of_rounds(name: str, ours: Sequence[float], theirs: Sequence[float], target: Target | None = None) -> ReportRow:
    """Medians over rounds that measured both sides; ratios are taken within a round."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return ReportRow(
        name, statistics.median(ours), statistics.median(theirs), target, spread_of(ours), spread_of(ratios)
    )


def spread_of(values: Collection[float]) -> tuple[float, float] | None:
    """Smallest and largest of several rounds; None for a single round."""
    return (min(values), max(values)) if len(values) > 1 else None
