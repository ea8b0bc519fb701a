"""How long an iteration may take before its engine counts as stuck."""

from __future__ import annotations

from spotwise.core.costs.cost_model import BatchShape
from spotwise.worker.engine_watch import SLACK, UNMEASURED, WARM_UP, IterationBound

FLOOR_S = 30.0
DECODE = BatchShape(decodes=4, decode_context=400)


def prompt(tokens: int) -> BatchShape:
    return BatchShape(prompt_tokens=tokens, prompt_context=tokens * tokens / 2)


def test_the_first_iterations_have_ten_floors() -> None:
    """They compile, allocate, or wait for weights."""
    bound = IterationBound(FLOOR_S)
    for _ in range(WARM_UP):
        assert bound.limit_s(DECODE) == UNMEASURED * FLOOR_S
        bound.ended(DECODE, 0.01)
    assert bound.limit_s(DECODE) == FLOOR_S


def test_prompts_that_were_never_measured_have_ten_floors() -> None:
    """A decode says nothing about them."""
    bound = IterationBound(FLOOR_S)
    for _ in range(WARM_UP):
        bound.ended(DECODE, 0.01)
    assert bound.limit_s(prompt(1000)) == UNMEASURED * FLOOR_S
    bound.ended(prompt(1000), 0.5)
    assert bound.limit_s(prompt(1000)) == FLOOR_S


def test_a_long_prompt_on_a_slow_machine_may_take_longer_than_the_floor() -> None:
    """20 times what as many tokens took, never less than the floor."""
    bound = IterationBound(FLOOR_S)
    for _ in range(WARM_UP):
        bound.ended(prompt(100), 1.0)
    assert bound.limit_s(prompt(8000)) > SLACK * 79.0
    assert bound.limit_s(prompt(10)) == FLOOR_S


def test_a_slow_iteration_is_remembered_for_a_while_only() -> None:
    """One that swapped must not leave the engine without a bound."""
    bound = IterationBound(FLOOR_S)
    for _ in range(WARM_UP):
        bound.ended(DECODE, 0.01)
    bound.ended(DECODE, 20.0)
    assert bound.limit_s(DECODE) == SLACK * 20.0
    for _ in range(100):
        bound.ended(DECODE, 0.01)
    assert bound.limit_s(DECODE) == FLOOR_S
