"""Schedules with heavy tails and bursts, from what simulations draw."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.benchmarks.heavy_tails import all_at_once, bursts
from spotwise.studies.fastserve.job_sizes import ZipfSizes

SIZES = ZipfSizes(64, 512, 1.5)


@given(st.floats(0.1, 50), st.floats(0.5, 5), st.integers(0, 1000))
def test_a_schedule_is_its_seed(rate: float, cv: float, seed: int) -> None:
    """Same seed, same schedule; another rate brings the same lengths at other times, and so does a storm."""
    arrivals = bursts(30, rate, cv, seed, SIZES)
    assert arrivals == bursts(30, rate, cv, seed, SIZES)
    assert arrivals != bursts(30, rate, cv, seed + 1, SIZES)
    faster, storm = bursts(30, 2 * rate, cv, seed, SIZES), all_at_once(30, seed, SIZES)
    lengths = [(each.input_tokens, each.output_tokens) for each in arrivals]
    assert lengths == [(each.input_tokens, each.output_tokens) for each in faster]
    assert lengths == [(each.input_tokens, each.output_tokens) for each in storm]
    assert [each.at_s / 2 for each in arrivals] == pytest.approx([each.at_s for each in faster])
    assert {each.at_s for each in storm} == {0.0}


def test_prompts_differ_and_are_not_those_of_the_storm() -> None:
    """Prompts differ from the storm's, so that its leftovers in a prefix cache give no side an advantage."""
    storm, arrivals = all_at_once(20, 1, SIZES), bursts(20, 2.0, 1.0, 1, SIZES)
    assert len({each.prompt_seed for each in (*storm, *arrivals)}) == 40
