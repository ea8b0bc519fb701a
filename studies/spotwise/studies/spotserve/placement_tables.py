"""Preemption-aware placement of requests against other placements, as a table and as a part of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from spotwise.studies.spotserve.placement_study import COUNTS, Interval, PlacementFinding
from spotwise.studies.spotserve.placement_world import PlacementRule


def placement_table(findings: Sequence[PlacementFinding]) -> Table:
    """Return a row for each fleet: interruptions by placement, and the share that the preemption-aware one avoids."""
    title = "placing requests by how long instances will live; means and 95 % intervals over seeds (placement)"
    table = Table(header_style="bold", title=title, title_justify="left", title_style="")
    for heading in ("fleet", "fitted on", "that stay"):
        table.add_column(heading)
    for placement in PlacementRule:
        table.add_column(f"interrupted: {placement.value}", justify="right")
    for heading in ("spared beside least loaded", "of tokens again", "latency / least loaded"):
        table.add_column(heading, justify="right")
    for finding in findings:
        table.add_row(
            finding.trace,
            finding.fitted_on,
            str(finding.steady),
            *(f"{finding.interval(placement, 'interruptions').mean:.0f}" for placement in PlacementRule),
            _share(finding.spared(PlacementRule.LEAST_LOADED)),
            _share(finding.spared(PlacementRule.LEAST_LOADED, "recomputed_tokens")),
            f"{_latency_ratio(finding):.2f}",
        )
    return table


def placement_document(findings: Sequence[PlacementFinding]) -> list[dict[str, Any]]:
    """Return all findings, with the bounds of the intervals."""
    return [
        {
            "trace": finding.trace,
            "fitted_on": finding.fitted_on,
            "steady": finding.steady,
            "by_placement": {
                placement.value: {count: _bounds(finding.interval(placement, count)) for count in COUNTS}
                for placement in PlacementRule
            },
            "spared_beside_least_loaded": {
                count: _bounds(finding.spared(PlacementRule.LEAST_LOADED, count)) for count in COUNTS[:2]
            },
        }
        for finding in findings
    ]


def _latency_ratio(finding: PlacementFinding) -> float:
    ours, others = (
        finding.interval(placement, "mean_latency_s").mean
        for placement in (PlacementRule.AWARE, PlacementRule.LEAST_LOADED)
    )
    return ours / others


def _share(interval: Interval) -> str:
    return f"{interval.mean:.0%} ({interval.low:.0%} to {interval.high:.0%})"


def _bounds(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}
