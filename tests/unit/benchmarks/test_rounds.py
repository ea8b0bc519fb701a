"""Tests of rounds: the order of the sides."""

from __future__ import annotations

from spotwise.benchmarks.rounds import in_order_of_round


def test_rounds_alternate_their_order() -> None:
    """A B C, C B A, A B C."""
    assert [in_order_of_round(number, ["a", "b", "c"]) for number in (1, 2, 3)] == [
        ("a", "b", "c"),
        ("c", "b", "a"),
        ("a", "b", "c"),
    ]
