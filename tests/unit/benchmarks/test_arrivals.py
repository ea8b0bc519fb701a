"""Schedules: seeded, Poisson, within their bounds."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.benchmarks.arrivals import TimedRequest, UniformSizes, poisson_arrivals, storm

seeds = st.integers(0, 1000)


@given(st.floats(0.1, 50), st.floats(1, 20), seeds)
def test_a_schedule_is_its_seed(rate: float, seconds: float, seed: int) -> None:
    arrivals = poisson_arrivals(rate, seconds, seed, UniformSizes())
    assert arrivals == poisson_arrivals(rate, seconds, seed, UniformSizes())
    assert arrivals != poisson_arrivals(rate, seconds, seed + 1, UniformSizes())


@given(st.floats(0.1, 50), st.floats(1, 20), seeds)
def test_arrivals_are_in_order_and_in_bounds(rate: float, seconds: float, seed: int) -> None:
    """There is at least one arrival, times ascend within the window (a single first one may lie after it), lengths
    keep their bounds.
    """
    arrivals = poisson_arrivals(rate, seconds, seed, UniformSizes((3, 9), (2, 4)))
    assert arrivals
    times = [arrival.at_s for arrival in arrivals]
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    assert all(at_s < seconds for at_s in times[1:])
    assert all(3 <= arrival.input_tokens <= 9 and 2 <= arrival.output_tokens <= 4 for arrival in arrivals)


def test_gaps_are_exponential() -> None:
    times = [arrival.at_s for arrival in poisson_arrivals(5.0, 4000.0, 1, UniformSizes())]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)


def test_lengths_are_uniform_as_in_orca() -> None:
    arrivals = storm(20_000, 1, UniformSizes())
    assert {arrival.input_tokens for arrival in arrivals} == set(range(32, 513))
    assert {arrival.output_tokens for arrival in arrivals} == set(range(1, 129))


def test_another_rate_brings_the_same_lengths_but_other_prompts() -> None:
    """Two rates differ in arrival times only; no prompt repeats, so that no prefix cache answers it."""

    def lengths(arrivals: list[TimedRequest]) -> list[tuple[int, int]]:
        return [(arrival.input_tokens, arrival.output_tokens) for arrival in arrivals]

    slow, fast = (poisson_arrivals(rate, 60.0, 7, UniformSizes()) for rate in (1.0, 4.0))
    assert lengths(slow) == lengths(fast)[: len(slow)]
    prompts = [arrival.prompt_seed for arrival in (*slow, *fast, *storm(10, 7, UniformSizes()))]
    assert len(set(prompts)) == len(prompts)
