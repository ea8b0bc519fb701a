"""What a profile of a mesh measures."""

from __future__ import annotations

from spotwise.cli.profile_run import RequestWave, profile_steps


def test_steps_go_from_short_to_long_and_from_few_to_many() -> None:
    steps = profile_steps(longest_prompt=100, widest=3, repeats=2)
    assert steps[:8] == [RequestWave(1, length, 2) for length in (16, 16, 32, 32, 64, 64, 100, 100)]
    assert {step.requests for step in steps[8:]} == {1, 2, 3}
    assert max(step.prompt_tokens for step in steps[8:]) == 50
