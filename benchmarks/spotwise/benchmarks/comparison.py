"""Report rows from readings: medians over all rounds of a side; the spread is that of the ratios within a round.

Within a round both sides ran in the same minutes, on the same machine, with the same prompts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spotwise.benchmarks.interference import Interference
from spotwise.benchmarks.rounds import spread_of
from spotwise.benchmarks.workloads import Figure, PeerWorkload
from spotwise.cli.bench.report import ReportRow


class Side(StrEnum):
    """A side of the comparison."""

    OURS = "spotwise"
    OURS_SPLIT = "spotwise-split"
    PEER = "vllm"
    TUNED_PEER = "vllm-tuned"

    @property
    def is_peer(self) -> bool:
        """Whether this is the peer."""
        return self in (Side.PEER, Side.TUNED_PEER)


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures (by name) of one workload, run once on one side; `round_number` counts from 1."""

    round_number: int
    side: Side
    workload: str
    figures: dict[str, float]


def sides_of(workload: PeerWorkload) -> tuple[Side, ...]:
    """The sides that run a workload; a peer tuned to small prompt batches too where the workload tests for their benefit."""
    tuned = (Side.TUNED_PEER,) if isinstance(workload.load, Interference) else ()
    return (Side.OURS, Side.OURS_SPLIT, Side.PEER, *tuned)


def rows_of(workloads: Iterable[PeerWorkload], readings: Sequence[Reading]) -> list[ReportRow]:
    """The report's rows: against the tuned peer where there is one; without targets the split mesh and the untuned peer."""
    measured = {(reading.side, reading.workload) for reading in readings}
    rows = []
    for workload in workloads:
        *_, reference = sides_of(workload)
        rows += [_row(workload, figure, Side.OURS, reference, readings) for figure in workload.figures]
        besides = [("split", Side.OURS_SPLIT, reference)] if (Side.OURS_SPLIT, workload.name) in measured else []
        if reference is Side.TUNED_PEER:
            besides.append(("untuned peer", Side.OURS, Side.PEER))
        rows += [
            _row(workload, Figure(figure.key, f"{figure.title} ({what})"), ours, theirs, readings)
            for what, ours, theirs in besides
            for figure in workload.figures
        ]
    return rows


def readings_as_json(readings: Iterable[Reading]) -> list[dict[str, Any]]:
    """The readings in a report's format."""
    return [
        {"round": r.round_number, "side": r.side.value, "workload": r.workload, "figures": r.figures} for r in readings
    ]


def readings_from_json(rounds: Iterable[dict[str, Any]]) -> list[Reading]:
    """Parse a report's readings; raises `KeyError`, `TypeError` or `ValueError` where they are malformed."""
    return [
        Reading(
            int(entry["round"]),
            Side(entry["side"]),
            str(entry["workload"]),
            {str(key): float(value) for key, value in entry["figures"].items()},
        )
        for entry in rounds
    ]


def _row(workload: PeerWorkload, figure: Figure, side: Side, reference: Side, readings: Sequence[Reading]) -> ReportRow:
    ours = _by_round(side, workload, figure, readings)
    theirs = _by_round(reference, workload, figure, readings)
    median = statistics.median(theirs.values()) if theirs else None
    ratios = [value / theirs.get(number, median) for number, value in ours.items()] if median else []
    return ReportRow(
        f"{workload.name.upper()} {figure.title}",
        statistics.median(ours.values()),
        median,
        figure.target,
        spread_of(ours.values()),
        spread_of(ratios),
    )


def _by_round(side: Side, workload: PeerWorkload, figure: Figure, readings: Sequence[Reading]) -> dict[int, float]:
    return {
        reading.round_number: reading.figures[figure.key]
        for reading in readings
        if (reading.side, reading.workload) == (side, workload.name)
    }
