"""What a profile of a mesh measures, and what is reported where a simulation goes beyond it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotwise.cli.profile import Measurements, RequestWave, fitted_profile, profile_steps
from spotwise.cli.profile_files import (
    LoadBeyond,
    extrapolation_lines,
    load_lines,
)
from spotwise.core.costs.cost_model import BatchShape, IterationTime
from spotwise.core.costs.cost_profile import BUILT_IN, Extrapolation, MeasuredRange


def test_steps_go_from_short_to_long_and_from_few_to_many() -> None:
    steps = profile_steps(longest_prompt=100, widest=3, repeats=2)
    assert steps[:8] == [RequestWave(1, length, 2) for length in (16, 16, 32, 32, 64, 64, 100, 100)]
    assert {step.requests for step in steps[8:]} == {1, 2, 3}
    assert max(step.prompt_tokens for step in steps[8:]) == 50


QUICK = MeasuredRange(64, 32.0, 2, 80.0)
PROFILE = replace(BUILT_IN, name="mine", measured=QUICK)


def test_a_profile_says_how_far_it_measured() -> None:
    """The largest iterations, also where they are few."""
    shapes = [BatchShape(tokens, tokens * tokens / 2, 0, 0) for tokens in (16, 32, 64)]
    shapes += [BatchShape(0, 0.0, decodes, decodes * context) for decodes in (1, 2) for context in (40, 60, 80)]
    times = [
        IterationTime(shape, 0.01 + 1e-4 * shape.prompt_tokens + 1e-6 * shape.decode_context) for shape in shapes * 10
    ]
    profile, _ = fitted_profile(Measurements(times, [], [], 4, 1024), "model", {"cores": 1, "cpu": "x"})
    assert profile.measured == QUICK


def test_a_share_of_the_time_is_named_with_its_causes() -> None:
    """Shares of each cause, and nothing of a share that rounds to none."""
    beyond = Extrapolation(QUICK, 0.405, {"prompt_tokens": 0.3, "prompt_context": 0.25, "decodes": 0.0001})
    (line,) = extrapolation_lines(PROFILE, beyond)
    assert line.startswith("40.5% of the iterations' time lies beyond what the profile measured")
    assert "more than 64 prompt tokens at once (30.0%), prompts longer than 64 tokens (25.0%). Measure further" in line
    assert extrapolation_lines(PROFILE, replace(beyond, share=0.0)) == []


def test_a_profile_that_does_not_say_is_marked() -> None:
    """One of an earlier version; not the built-in one, and not where there is no profile."""
    (line,) = extrapolation_lines(replace(PROFILE, measured=None), None)
    assert "does not say how far it was measured" in line
    assert load_lines(replace(PROFILE, measured=None), None) == [line]
    assert extrapolation_lines(None, None) == extrapolation_lines(BUILT_IN, None) == load_lines(BUILT_IN, None) == []


@pytest.mark.parametrize(
    ("sizes", "batch", "causes"),
    [
        ([(64, 16)], 2, []),
        ([(64, 16), (65, 1)], 2, ["50.0% of the prompts are longer than 64 tokens"]),
        ([(60, 21)], 2, ["100.0% of the contexts grow beyond 80 tokens"]),
        ([(64, 16)], 32, ["batches have up to 32 decodes, and 2 were measured"]),
        ([(600, 1)], 3, ["100.0% of the prompts", "100.0% of the contexts", "up to 3 decodes"]),
    ],
)
def test_a_load_beyond_its_profile_is_named(sizes: list[tuple[int, int]], batch: int, causes: list[str]) -> None:
    lines = load_lines(PROFILE, LoadBeyond.of(QUICK, sizes, batch))
    assert bool(lines) == bool(causes)
    assert all(cause in lines[0] for cause in causes)
