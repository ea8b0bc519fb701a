"""Sweeps of several rounds, merged and compared."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.batching_report import comparison_rows, latency_bound_s, merge_rounds
from spotwise.benchmarks.curve import RatePoint
from spotwise.benchmarks.policy_probe import ITERATION_LEVEL, REQUEST_LEVEL

HEADLINE = "requests/s at median latency <= 200 ms/token, against "


def point(rate: float, throughput: float, median_s: float) -> RatePoint:
    return RatePoint(rate, throughput, median_s, 2 * median_s, 10, 1)


def test_rounds_merge_by_rate() -> None:
    """Medians of figures, each for itself; sums of requests."""
    rounds = [[point(1, 1.0, 0.1)], [point(1, 3.0, 0.5)], [point(1, 2.0, 0.9)]]
    assert merge_rounds(rounds) == [RatePoint(1, 2.0, 0.5, 1.0, 30, 3)]


def test_rows_compare_at_twice_our_idle_latency() -> None:
    """Against each other server: a headline with a target, then every rate."""
    servers = {
        ITERATION_LEVEL: [[point(1, 1.0, 0.1), point(4, 4.0, 0.2)]],
        REQUEST_LEVEL: [[point(1, 1.0, 0.2), point(4, 2.0, 0.9)]],
        "vllm": [[point(1, 1.0, 0.1), point(4, 5.0, 0.2)]],
    }
    assert latency_bound_s(servers[ITERATION_LEVEL]) == 0.2
    rows = {row.name: row for row in comparison_rows(servers)}
    headlines = [(name, row.ours, row.reference, row.holds) for name, row in rows.items() if row.target is not None]
    assert headlines == [
        (f"{HEADLINE}request_level", 4.0, 1.0, True),
        (f"{HEADLINE}vllm", 4.0, 5.0, False),
    ]
    at_4 = rows["latency p50, ms/token at 4/s, against request_level"]
    assert (at_4.ours, at_4.reference, at_4.ours_spread, at_4.ratio_spread) == (200.0, 900.0, None, None)
    assert len(rows) == 2 * (1 + 2 * 3)


def test_ratios_are_spread_within_rounds() -> None:
    servers = {
        ITERATION_LEVEL: [[point(1, 2.0, 0.1)], [point(1, 4.0, 0.1)]],
        REQUEST_LEVEL: [[point(1, 1.0, 0.1)], [point(1, 4.0, 0.1)]],
    }
    headline, throughput, median, _ = comparison_rows(servers)
    assert (headline.ours, headline.reference) == (3.0, 2.5)
    assert headline.ratio_spread == throughput.ratio_spread == (1.0, 2.0)
    assert headline.ours_spread == (2.0, 4.0)
    assert median.ratio_spread == (1.0, 1.0)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_peer_that_never_keeps_the_bound_has_no_ratio(rounds: int) -> None:
    """Without a rate of the peer's there is no ratio, and the row's note has that reason."""
    servers = {
        ITERATION_LEVEL: [[point(1, 1.0, 0.1)]] * rounds,
        REQUEST_LEVEL: [[point(1, 1.0, 0.5)]] * rounds,
    }
    headline = comparison_rows(servers)[0]
    assert (headline.ours, headline.reference, headline.ratio, headline.holds) == (1.0, None, None, None)
    assert headline.ratio_spread is None
