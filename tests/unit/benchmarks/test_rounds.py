"""The order of sides in each round, and the rows of all rounds."""

from __future__ import annotations

from spotwise.benchmarks.rounds import in_order_of_round, row_of_rounds
from spotwise.cli.bench.report import ReportRow, Target


def test_rounds_alternate_their_order() -> None:
    assert [in_order_of_round(number, ["a", "b", "c"]) for number in (1, 2, 3)] == [
        ("a", "b", "c"),
        ("c", "b", "a"),
        ("a", "b", "c"),
    ]


def test_rounds_are_summed_up_by_their_medians() -> None:
    """Ratios are spread within a round, not between the medians; a single round has no spread."""
    target = Target(at_most=1.0)
    found = row_of_rounds("TPOT, ms", [2.0, 3.0, 10.0], [4.0, 2.0, 5.0], target)
    assert found == ReportRow("TPOT, ms", 3.0, 4.0, target, (2.0, 10.0), (0.5, 2.0))
    assert row_of_rounds("alone", [2.0], [4.0]) == ReportRow("alone", 2.0, 4.0)
