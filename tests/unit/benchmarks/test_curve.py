"""Latency-throughput curves: points, where two curves are compared, sweeps of several rounds, and their plots."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.batching import parse_rates
from spotwise.benchmarks.batching_report import comparison_rows, latency_bound_s, merge_rounds
from spotwise.benchmarks.curve import RatePoint, point_of, throughput_within
from spotwise.benchmarks.open_loop import Outcome, failures
from spotwise.benchmarks.plot import plot_completion_times, plot_curves
from spotwise.benchmarks.policy_probe import ITERATION_LEVEL, REQUEST_LEVEL
from spotwise.cli.bench.report import require_plotting
from spotwise.cli.errors import CommandError


def outcome(at_s: float, output_tokens: int, latency_s: float | None, failure: str | None = None) -> Outcome:
    return Outcome(TimedRequest(at_s, 10, output_tokens, "a"), latency_s, failure)


def test_a_point_normalizes_by_output_and_counts_to_the_last_answer() -> None:
    """Latency per output token by request; throughput of what was answered, until the last answer came."""
    outcomes = [outcome(0.0, 10, 1.0), outcome(1.0, 2, 1.0), outcome(3.0, 5, 1.0), outcome(9.0, 1, None, "status 503")]
    assert point_of(0.5, outcomes) == RatePoint(0.5, 3 / 4.0, 0.2, 0.5, 3, 1)
    assert failures(outcomes) == {"status 503": 1}


def test_a_rate_without_answers_is_no_point() -> None:
    with pytest.raises(CommandError, match="nothing was answered: status 503"):
        point_of(4.0, [outcome(0.0, 1, None, "status 503")])


def test_throughput_at_a_latency_is_read_off_between_two_points() -> None:
    points = [point(4, 3.0, 0.3), point(1, 1.0, 0.1), point(2, 2.0, 0.1)]
    assert throughput_within(points, 0.2) == pytest.approx(2.5)
    assert throughput_within(points, 0.3) == 3.0
    assert throughput_within(points, 9.0) == 3.0
    assert throughput_within(points, 0.05) is None


def test_past_its_peak_a_server_gives_no_less_than_before() -> None:
    assert throughput_within([point(1, 2.0, 0.1), point(2, 1.0, 0.3)], 0.2) == 2.0


@pytest.mark.parametrize("text", ["", "fast", "1,-2", "0", "inf", "nan"])
def test_rates_are_positive_numbers(text: str) -> None:
    with pytest.raises(CommandError, match="--rates"):
        parse_rates(text)


def test_rates_are_swept_upwards() -> None:
    assert parse_rates("4,0.5, 1,4") == [0.5, 1.0, 4.0]


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
    servers = {
        ITERATION_LEVEL: [[point(1, 1.0, 0.1)]] * rounds,
        REQUEST_LEVEL: [[point(1, 1.0, 0.5)]] * rounds,
    }
    headline = comparison_rows(servers)[0]
    assert (headline.ours, headline.reference, headline.ratio, headline.holds) == (1.0, None, None, None)
    assert headline.ratio_spread is None


def test_a_plot_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    """The folder is made where it is missing; an SVG names every line."""
    curves = {
        "iteration_level": [RatePoint(1, 1.0, 0.1, 0.2, 5, 0), RatePoint(2, 2.0, 0.2, 0.3, 9, 0)],
        "request_level": [RatePoint(1, 0.9, 0.3, 0.9, 5, 0)],
    }
    picture, drawing = tmp_path / "plots" / "curve.png", tmp_path / "plots" / "curve.svg"
    for path in (picture, drawing):
        require_plotting(path)
        plot_curves(curves, path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = drawing.read_text()
    for label in ("iteration_level, median", "iteration_level, p90", "request_level, median"):
        assert label in text


def test_completion_times_are_drawn_with_a_line_for_each_discipline(tmp_path: Path) -> None:
    drawing = tmp_path / "plots" / "times.svg"
    plot_completion_times({"fcfs": [1.0, 2.0, 30.0], "mlfq": [0.5, 1.0, 40.0]}, drawing)
    text = drawing.read_text()
    assert all(label in text for label in ("fcfs", "mlfq", "job completion time, s"))


def test_a_name_without_a_format_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"\.png, \.svg"):
        require_plotting(tmp_path / "curve")


@pytest.mark.parametrize("option", ["--plot", "--figures"])
def test_a_missing_library_is_reported_with_the_option_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=rf"{option} needs matplotlib.*pip install"):
        require_plotting(tmp_path / "curve.png", option)
