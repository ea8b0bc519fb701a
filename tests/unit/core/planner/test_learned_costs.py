"""What changes take is learned from those that ended, by what it depends on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.core.messages import mesh as m
from spotwise.core.planner.change_cost import ChangeCost, LearnedSeconds
from tests.unit.core.planner.reshape_bench import group

ONE, TWO, SIX = group("a", "d0"), group("b", "d0", "d1"), group("c", *(f"d{number}" for number in range(6)))


def moved(pause_s: float) -> m.MoveEnded:
    """A request that moved."""
    return m.MoveEnded("r", 1, "a", "b", m.MoveOutcome.MOVED, "", 100, 0.1, pause_s)


@given(st.tuples(*[st.floats(0.01, 1.0)] * 3))
def test_what_is_linear_is_found(coefficients: tuple[float, ...]) -> None:
    """Whatever was assumed before; never less than nothing."""
    learned = LearnedSeconds(5.0, 0.0, 0.0)
    cases = [(1.0, first, second) for first in (1, 2, 6) for second in (1, 3, 9)]
    for _ in range(30):
        for each in cases:
            learned.learn(sum(a * b for a, b in zip(coefficients, each, strict=True)), *each)
    for each in cases:
        expected = sum(a * b for a, b in zip(coefficients, each, strict=True))
        assert learned.expected(*each) == pytest.approx(expected, abs=0.05)


def test_more_takes_no_less_time() -> None:
    """Sixteen processes took a third of what was assumed; 256 take no less than those."""
    learned = LearnedSeconds(2.0, 0.0, 1.0)
    learned.learn(0.94, 1.0, 16.0, 1.0)
    assert learned.expected(1.0, 16.0, 1.0) == pytest.approx(0.94, rel=0.15)
    assert learned.expected(1.0, 256.0, 1.0) >= learned.expected(1.0, 16.0, 1.0) > 0.5


def test_a_pause_depends_on_the_groups_that_it_is_between() -> None:
    """The first one moves the expectation already; larger groups take longer once that was seen."""
    cost = ChangeCost(0.05, 1e-4)
    assert cost.pause_s([ONE], [TWO], 1) == pytest.approx(0.05)
    assert cost.pause_s([], [TWO], 1) == 0.0
    cost.learn(moved(0.2), 1, 2, 1)
    assert 0.15 < cost.pause_s([ONE], [TWO], 1) < 0.2
    for _ in range(20):
        cost.learn(moved(0.06), 1, 1, 1)
        cost.learn(moved(0.16), 6, 1, 1)
        cost.learn(moved(0.16), 1, 6, 1)
    assert cost.pause_s([ONE], [ONE], 1) == pytest.approx(0.06, rel=0.15)
    assert cost.pause_s([SIX], [SIX], 1) == pytest.approx(0.26, rel=0.15)
    cost.learn(moved(9.0), None, 1, 1)  # its source is gone
    assert cost.pause_s([ONE], [ONE], 1) < 0.1


def test_a_pause_depends_on_how_many_requests_move_at_once() -> None:
    """A change of all groups says little of the next notice to a few."""
    cost = ChangeCost(0.05, 1e-4)
    for _ in range(8):
        cost.learn(moved(0.1), 1, 1, 8)
    assert cost.pause_s([ONE], [ONE], 128) < 0.2  # not as if each request had added its part
    for _ in range(128):
        cost.learn(moved(0.2), 1, 1, 128)
    assert cost.pause_s([ONE], [ONE], 128) == pytest.approx(0.2, rel=0.1)
    assert cost.pause_s([ONE], [ONE], 8) == pytest.approx(0.1, rel=0.2)


def test_forming_depends_on_the_processes_and_on_the_weights_that_travel() -> None:
    cost = ChangeCost(0.05, 1e-4)
    assert cost.forming_s([TWO], 0.5) == pytest.approx(2.5)
    assert cost.forming_s([], 0.0) == 0.0
    for _ in range(40):
        cost.learn_forming(0.4, [ONE], 0.0)
        cost.learn_forming(0.9, [SIX], 0.0)
        cost.learn_forming(1.4, [SIX], 0.25)
    assert cost.forming_s([ONE], 0.0) == pytest.approx(0.4, abs=0.1)
    assert cost.forming_s([SIX], 0.25) == pytest.approx(1.4, abs=0.1)
