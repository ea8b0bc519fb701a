"""Latency-throughput curves: points, and where two curves are compared."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.batching import parse_rates
from spotwise.benchmarks.curve import RatePoint, point_of, throughput_within
from spotwise.benchmarks.open_loop import Outcome, failures
from spotwise.cli.errors import CommandError


def outcome(at_s: float, output_tokens: int, latency_s: float | None, failure: str | None = None) -> Outcome:
    return Outcome(TimedRequest(at_s, 10, output_tokens, "a"), latency_s, failure)


def point(rate: float, throughput: float, median_s: float) -> RatePoint:
    return RatePoint(rate, throughput, median_s, 2 * median_s, 10, 0)


def test_a_point_normalizes_by_output_and_counts_to_the_last_answer() -> None:
    """Latency per output token by request; throughput of what was answered, until the last answer came."""
    outcomes = [outcome(0.0, 10, 1.0), outcome(1.0, 2, 1.0), outcome(3.0, 5, 1.0), outcome(9.0, 1, None, "status 503")]
    assert point_of(0.5, outcomes) == RatePoint(0.5, 3 / 4.0, 0.2, 0.5, 3, 1)
    assert failures(outcomes) == {"status 503": 1}


def test_a_rate_without_answers_is_no_point() -> None:
    """A rate without answers is no point of the curve, and the reason is recorded."""
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
