"""What a client saw of its worker's leaving, from the times of its tokens."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.moved_streams import Interrupted, Stream
from spotwise.benchmarks.moves import _rows


def stream(*arrivals: tuple[float, int]) -> Stream:
    return Stream([1, 2, 3], arrivals=[*arrivals])


def test_the_longest_gap_counts_from_the_last_token_before_the_notice() -> None:
    seen = stream((0.0, 1), (5.0, 2), (5.1, 3), (5.2, 4), (5.9, 5), (6.0, 6))
    assert seen.longest_gap_s(5.3) == pytest.approx(0.7)
    assert seen.longest_gap_s(5.95) == pytest.approx(0.1)
    assert seen.usual_gap_s(5.25) == pytest.approx(0.1)


def test_tokens_that_were_seen_before_end_no_gap() -> None:
    """A request sent anew brings the old tokens first."""
    seen = stream((0.0, 1), (0.1, 2), (1.0, 2), (1.1, 3))
    assert seen.longest_gap_s(0.1) == pytest.approx(1.0)


def test_moves_are_compared_with_recomputing_at_the_longest_prompt() -> None:
    """Only requests that moved; beyond 50 ms, in gaps of the time before."""
    moved = {"tokens": 100, "copied_before": 90, "kv_bytes": 10**6, "pause_s": 0.02}
    interrupted = [
        Interrupted("move", 1024, 0.08, 0.03, 0, moved),
        Interrupted("move", 64, 0.11, 0.03, 0, moved),
        Interrupted("move", 1024, 9.0, 0.03, 0, None),
        Interrupted("recompute", 1024, 0.8, 0.03, 1100, None),
    ]
    rows = {row.name: row for row in _rows(interrupted, ["move", "recompute"], 1024)}
    compared = rows["move against recompute, prompt of 1024, ms"]
    assert (compared.ours, compared.reference, compared.holds) == (pytest.approx(80.0), pytest.approx(800.0), True)
    beyond = rows["move: longest gap beyond 50 ms, in iterations of the time"]
    assert beyond.ratio == pytest.approx((95.0 - 50.0) / 30.0)
    assert rows["move: requests that moved"].ours == 2
    assert rows["recompute: tokens computed again"].ours == 1100
