"""A budget of time for each property: as many examples as this machine tries within it, and no fewer than a few.

A fast machine tries all that a test asks for. On a slow one the rest of the examples pass untried, so that a run ends in time;
`SPOTWISE_EXAMPLES_S=0` sets no budget (`make test-properties`). From a first failure on every example is tried: the search for
the smallest one needs them. A property that draws within its body has no budget: to hypothesis an example that stops to draw
is a flaky one.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis.strategies import DataObject

BUDGET_S = float(os.environ.get("SPOTWISE_EXAMPLES_S", "1"))
#: So many are tried however long they take.
FEWEST = 5
#: Hypothesis looks for the smallest failing example for up to five minutes: a time-out before that would hide it.
FAILURE_TIMEOUT_S = 900


def limit_examples(items: list[pytest.Item], budget_s: float = BUDGET_S) -> None:
    """Give every property among the tests a budget; of a state machine, whose steps are no examples, none."""
    for item in items:
        handle = getattr(getattr(item, "obj", None), "hypothesis", None)
        if handle is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FAILURE_TIMEOUT_S))
        if budget_s and handle is not None and not inspect.iscoroutinefunction(handle.inner_test):
            handle.inner_test = within_budget(handle.inner_test, budget_s)


def within_budget(test: Callable[..., None], budget_s: float) -> Callable[..., None]:
    """Return the test of one example, which passes untried once the budget is spent."""
    tried, spent_s, has_failed = 0, 0.0, False

    @functools.wraps(test)
    def limited(*arguments: Any, **named: Any) -> None:
        nonlocal tried, spent_s, has_failed
        draws = any(isinstance(each, DataObject) for each in (*arguments, *named.values()))
        if spent_s > budget_s and tried >= FEWEST and not (has_failed or draws):
            return
        began_s = time.perf_counter()
        try:
            test(*arguments, **named)
        except Exception:
            has_failed = True
            raise
        finally:
            tried, spent_s = tried + 1, spent_s + time.perf_counter() - began_s

    return limited
