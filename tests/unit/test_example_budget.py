"""The budget of a property: it stops what passes, and never what fails."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.example_budget import FEWEST, within_budget


def test_examples_after_the_budget_are_not_tried_and_a_few_always_are() -> None:
    tried: list[int] = []
    spend = within_budget(lambda number: (tried.append(number), time.sleep(0.002))[0], budget_s=0.001)
    for number in range(3 * FEWEST):
        spend(number)
    assert tried == list(range(FEWEST))


def test_a_failure_is_found_and_made_small_whatever_has_been_spent() -> None:
    """The same failure again and again, else hypothesis would call the test flaky."""

    @settings(max_examples=200, database=None)
    @given(st.integers(0, 1000))
    def fails(number: int) -> None:
        time.sleep(0.001)
        assert number < 37

    handle: Any = fails
    handle.hypothesis.inner_test = within_budget(handle.hypothesis.inner_test, budget_s=0.005)
    with pytest.raises(AssertionError, match="assert 37 < 37"):
        fails()


def test_a_property_that_draws_within_its_body_has_no_budget() -> None:
    """To hypothesis it would be flaky: where it drew before, it would draw nothing."""
    tried = 0

    @settings(max_examples=50, database=None)
    @given(st.data())
    def draws(data: st.DataObject) -> None:
        nonlocal tried
        tried += 1
        time.sleep(0.001)
        data.draw(st.integers())

    handle: Any = draws
    handle.hypothesis.inner_test = within_budget(handle.hypothesis.inner_test, budget_s=0.001)
    draws()
    assert tried == 50
