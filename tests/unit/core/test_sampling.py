"""The one source of randomness, and the properties of sampling parameters."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.requests.sampling import SamplingParams, counter_uniform

SEEDS = st.integers(0, 2**64 - 1)
INDEXES = st.integers(0, 2**32)


@given(SEEDS, INDEXES)
def test_it_is_a_pure_number_from_zero_to_below_one(seed: int, index: int) -> None:
    """The same arguments give the same number, always in [0, 1)."""
    drawn = counter_uniform(seed, index)
    assert 0.0 <= drawn < 1.0
    assert counter_uniform(seed, index) == drawn


@pytest.mark.parametrize(
    ("seed", "index", "drawn"),
    [
        (0, 0, 0.6524484863740322),
        (0, 1, 0.7012121095215252),
        (42, 7, 0.7347204584623639),
        (2**64 - 1, 2**31, 0.16108300974245593),
    ],
)
def test_its_values_never_change_between_versions(seed: int, index: int, drawn: float) -> None:
    """The values are fixed across versions: a worker of another version must continue with the very same text."""
    assert counter_uniform(seed, index) == drawn


@given(SEEDS, INDEXES, INDEXES)
def test_two_indexes_of_a_seed_draw_differently(seed: int, first: int, second: int) -> None:
    assert (counter_uniform(seed, first) == counter_uniform(seed, second)) == (first == second)


@given(SEEDS, SEEDS, st.integers(0, 1000))
def test_two_seeds_draw_differently(first: int, second: int, index: int) -> None:
    """Choices with neighbouring seeds do not sample alike."""
    assert (counter_uniform(first, index) == counter_uniform(second, index)) == (first == second)


@pytest.mark.parametrize("step", ["index", "seed", "both"])
def test_it_is_spread_evenly(step: str) -> None:
    """Along indexes, along seeds and along both, 20,000 numbers fill 20 bins as chance would (chi-square, 19 degrees)."""
    count, bins = 20_000, 20
    drawn = [counter_uniform(i if step != "index" else 5, i if step != "seed" else 5) for i in range(count)]
    counts = [0] * bins
    for number in drawn:
        counts[int(number * bins)] += 1
    expected = count / bins
    chi_square = sum((seen - expected) ** 2 / expected for seen in counts)
    assert abs(sum(drawn) / count - 0.5) < 0.01
    assert chi_square < 43.8  # exceeded once in a thousand by true chance


def test_neighbouring_draws_are_not_correlated() -> None:
    count = 20_000
    drawn = [counter_uniform(11, index) - 0.5 for index in range(count)]
    covariance = sum(a * b for a, b in itertools.pairwise(drawn)) / (count - 1)
    assert abs(covariance * 12) < 0.03  # the variance of a uniform number is 1/12


def test_greedy_is_temperature_zero() -> None:
    """Only temperature 0 takes the likeliest token."""
    assert SamplingParams(temperature=0.0).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy


@pytest.mark.parametrize(
    ("params", "has_penalties"),
    [
        (SamplingParams(), False),
        (SamplingParams(presence_penalty=0.1), True),
        (SamplingParams(frequency_penalty=-0.1), True),
        (SamplingParams(repetition_penalty=1.2), True),
        (SamplingParams(logit_bias=((1, 5.0),)), False),
    ],
)
def test_penalties_are_those_that_look_at_earlier_tokens(params: SamplingParams, has_penalties: bool) -> None:
    """A logit bias is none of them: it is the same at every token."""
    assert params.has_penalties is has_penalties
