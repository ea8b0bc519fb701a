"""Steady streams beside long prompts: schedule and figures."""

from __future__ import annotations

import pytest

from spotwise.benchmarks.interference import Interference, interference_figures, long_prompt_times
from spotwise.cli.bench.completion import Answer


def test_long_prompts_come_at_fixed_times() -> None:
    """Long prompts are sent at fixed intervals from the start, as long as requests are sent."""
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.0)) == [0.0, 2.0, 4.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=6.5)) == [0.0, 2.0, 4.0, 6.0]
    assert long_prompt_times(Interference(every_s=2.0, seconds=0.5)) == [0.0]
    assert len(long_prompt_times(Interference())) == 20


def test_figures_are_gaps_of_steady_streams_and_first_chunks_of_long_prompts() -> None:
    """A gap does not span two answers; the long prompts' own gaps do not count."""
    steady = [
        Answer(0.0, (1.0, 1.01, 1.03), 3),
        Answer(5.0, (5.5, 5.54), 4),
    ]
    long = [Answer(0.0, (2.0, 9.0), 2), Answer(2.0, (5.0, 9.5), 2), Answer(4.0, (5.0,), 1)]
    figures = interference_figures(steady, long)
    assert figures["itl_p50_ms"] == pytest.approx(20.0)
    assert figures["itl_p99_ms"] == figures["itl_max_ms"] == pytest.approx(40.0)
    assert (figures["long_ttft_p50_ms"], figures["long_ttft_p99_ms"]) == (2000.0, 3000.0)
    assert (figures["steady_requests"], figures["long_requests"]) == (2, 3)
    assert figures["chunks_per_token"] == pytest.approx(5 / 7)
