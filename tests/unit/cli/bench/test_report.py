"""The one shape of all results: ratios, targets, table, document."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from spotwise.cli.bench.report import ReportRow, Target, environment, write_report


@pytest.mark.parametrize(
    ("target", "ratio", "holds"),
    [
        (Target(at_most=1.0), 1.0, True),
        (Target(at_most=1.0), 1.01, False),
        (Target(at_least=1.3), 1.3, True),
        (Target(at_least=1.3), 1.29, False),
        (Target(at_most=1.2, at_least=0.8), 1.0, True),
        (Target(at_most=1.2, at_least=0.8), 0.7, False),
        (Target(at_most=1.2, at_least=0.8), 1.3, False),
    ],
)
def test_a_target_bounds_the_ratio(target: Target, ratio: float, holds: bool) -> None:
    assert ReportRow("x", 10 * ratio, 10.0, target).holds is holds


def test_without_a_reference_nothing_holds_or_fails() -> None:
    assert (ReportRow("x", 1.0).ratio, ReportRow("x", 1.0, None, Target(at_most=1)).holds) == (None, None)
    assert ReportRow("x", 1.0, 0.0, Target(at_most=1)).holds is None
    assert (ReportRow("x", 1.0, 2.0).ratio, ReportRow("x", 1.0, 2.0).holds) == (0.5, None)


def test_document_and_table_agree(tmp_path: Path) -> None:
    """Six keys a row, computed ones included; spreads are in the table only, their samples in the document beside the rows."""
    rows = [
        ReportRow("TPOT, ms", 12.0, 10.0, Target(at_most=1.0), (11.0, 13.0), (1.1, 1.3)),
        ReportRow("alone", 7.0),
    ]
    text = io.StringIO()
    path = tmp_path / "result.json"
    console = Console(file=text, width=160)
    write_report(rows, environment(seed=3), path, console, lambda figure: f"{figure:.1f}", rounds=[{"round": 1}])
    document = json.loads(path.read_text())
    assert document["rows"] == [
        {"name": "TPOT, ms", "reference": 10.0, "ours": 12.0, "ratio": 1.2, "target": "<= 1x", "holds": False},
        {"name": "alone", "reference": None, "ours": 7.0, "ratio": None, "target": None, "holds": None},
    ]
    assert document["environment"]["seed"] == 3
    assert document["environment"]["cores"] >= 1
    assert document["rounds"] == [{"round": 1}]
    shown = text.getvalue()
    for part in ("12.0 (11.0–13.0)", "1.20x (1.10–1.30)", "<= 1x", "no", "alone", "7.0"):
        assert part in shown
