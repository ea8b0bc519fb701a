"""Report rows from readings: medians over all rounds of a side; the spread is that of the ratios within a round.

Within a round all sides ran in the same minutes, on the same machine, with the same prompts. Each yardstick has its rows; the
better one is the one that targets refer to.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.rounds import spread_of
from spotwise.benchmarks.sides import Side
from spotwise.benchmarks.workloads import Figure, PeerWorkload
from spotwise.cli.bench.report import ReportRow


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures (by name) of one workload, run once on one side; `round_number` counts from 1."""

    round_number: int
    side: Side
    workload: str
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Failure:
    """A workload that could not be measured on a side, and why; `round_number` counts from 1."""

    round_number: int
    side: Side
    workload: str
    reason: str

    def __str__(self) -> str:
        return f"round {self.round_number}, {self.side}, {self.workload}: {self.reason}"


def rows_of(workloads: Iterable[PeerWorkload], readings: Sequence[Reading]) -> list[ReportRow]:
    """The report's rows: ours beside the better yardstick, with targets; then beside the other ones, and the split mesh."""
    rows = []
    for workload in workloads:
        by_side: dict[Side, list[Reading]] = {}
        for reading in readings:
            if reading.workload == workload.name:
                by_side.setdefault(reading.side, []).append(reading)
        meshes = [side for side in by_side if not side.is_yardstick]
        yardsticks = sorted((side for side in by_side if side.is_yardstick), key=str)
        ours = next((side for side in meshes if not side.setup), None)
        best = {figure: _better(workload, figure, yardsticks, by_side) for figure in workload.figures}
        if ours is not None:
            rows += [_row(workload, figure, ours, side, by_side) for figure, side in best.items()]
            rows += [
                _row(workload, replace(figure, target=None), ours, side, by_side)
                for side in yardsticks
                for figure in workload.figures
                if side != best[figure]
            ]
        rows += [
            _row(workload, replace(figure, target=None), mesh, best[figure], by_side)
            for mesh in meshes
            if mesh.setup
            for figure in workload.figures
        ]
    return rows


def readings_as_json(readings: Iterable[Reading]) -> list[dict[str, Any]]:
    """The readings in a report's format."""
    return [
        {"round": r.round_number, "side": str(r.side), "workload": r.workload, "figures": r.figures} for r in readings
    ]


def readings_from_json(rounds: Iterable[dict[str, Any]]) -> list[Reading]:
    """Parse a report's readings; raises `KeyError`, `TypeError` or `ValueError` where they are malformed."""
    return [
        Reading(
            int(entry["round"]),
            Side.parse(entry["side"]),
            str(entry["workload"]),
            {str(key): float(value) for key, value in entry["figures"].items()},
        )
        for entry in rounds
    ]


def _better(
    workload: PeerWorkload, figure: Figure, yardsticks: Sequence[Side], by_side: dict[Side, list[Reading]]
) -> Side | None:
    """The yardstick with the best median of a figure; where its figures are a trade-off, of the first one for all."""
    compared = workload.figures[0] if isinstance(workload.load, Interference) else figure
    sign = -1 if compared.more_is_better else 1
    return min(
        yardsticks,
        key=lambda side: sign * statistics.median(reading.figures[compared.key] for reading in by_side[side]),
        default=None,
    )


def _row(
    workload: PeerWorkload, figure: Figure, side: Side, reference: Side | None, by_side: dict[Side, list[Reading]]
) -> ReportRow:
    ours = _by_round(by_side[side], figure)
    theirs = {} if reference is None else _by_round(by_side[reference], figure)
    median = statistics.median(theirs.values()) if theirs else None
    ratios = [value / theirs.get(number, median) for number, value in ours.items()] if median else []
    setup = f" ({side.setup})" if side.setup else ""
    beside = "" if reference is None else f", beside {reference}"
    return ReportRow(
        f"{workload.name.upper()} {figure.title}{setup}{beside}",
        statistics.median(ours.values()),
        median,
        figure.target,
        spread_of(ours.values()),
        spread_of(ratios),
    )


def _by_round(readings: Iterable[Reading], figure: Figure) -> dict[int, float]:
    return {reading.round_number: reading.figures[figure.key] for reading in readings}
