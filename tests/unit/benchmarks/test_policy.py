"""What `bench dev policy` makes of outcomes."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.arrivals import TimedRequest
from spotwise.benchmarks.open_loop import Outcome
from spotwise.benchmarks.policy import figures, requests_per_s
from spotwise.cli.errors import CommandError


def outcome(at_s: float, tokens_s: tuple[float, ...], asked: int) -> Outcome:
    return Outcome(TimedRequest(at_s, 5, asked, "p"), tokens_s[-1], tokens_s=tokens_s)


def test_times_count_from_when_a_job_was_to_be_sent() -> None:
    """Per job and per token; the tokens' rate is over the whole run, from the first arrival to the last end."""
    found = figures([outcome(1.0, (1.0, 2.0, 3.0, 4.0), 4), outcome(3.0, (2.0, 6.0), 2)])
    assert found["mean JCT, s"] == 5.0
    assert found["mean JCT per token, s"] == 2.0
    assert (found["JCT p50, s"], found["JCT p99, s"]) == (4.0, 6.0)
    assert (found["TTFT p50, s"], found["TTFT p99, s"]) == (1.0, 2.0)
    assert found["output tokens/s while requests come"] == 2 / (3.0 - 1.0)  # those at 2 and 3 s
    assert found["output tokens/s to the last answer"] == 6 / (9.0 - 1.0)


def test_a_chunk_may_be_several_tokens() -> None:
    found = figures([outcome(0.0, (1.0, 2.0), 6), outcome(2.0, (1.0,), 1)])
    assert found["output tokens/s while requests come"] == 6 / 2


def test_capacity_is_measured_in_the_middle_of_a_storm() -> None:
    """Two tokens a second but for slow edges; jobs of ten tokens: a fifth of a request a second."""
    early, late = [0.5 * number for number in range(50)], [25 + 0.5 * number for number in range(45)]
    last = [60.0, 70.0, 80.0, 90.0, 100.0]
    times = [*early, *late, *last]
    storm = [outcome(0.0, tuple(times[first : first + 10]), 10) for first in range(0, 100, 10)]
    assert requests_per_s(storm) == pytest.approx(0.2)


def test_a_storm_without_figures_is_refused() -> None:
    with pytest.raises(CommandError, match="--requests"):
        requests_per_s([outcome(0.0, (1.0,), 1)])
