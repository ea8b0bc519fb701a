"""Simulated time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotwise.simulator.world.events import EventQueue


class TestEventQueue:
    """The order of events."""

    def test_events_happen_in_order_of_time_and_then_of_scheduling(self) -> None:
        """Whatever order they were scheduled in."""
        queue = EventQueue()
        happened: list[str] = []
        for time_s, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
            queue.at(time_s, happened.append, name)
        queue.run()
        assert happened == ["first", "second", "late"]
        assert queue.now == 2.0

    def test_what_an_event_schedules_for_now_comes_after_what_was_scheduled_for_now_before(self) -> None:
        """An event scheduled for the current time runs after those scheduled for it before."""
        queue = EventQueue()
        happened: list[str] = []

        def first(name: str) -> None:
            happened.append(name)
            queue.at(queue.now, happened.append, "caused")

        queue.at(1.0, first, "first")
        queue.at(1.0, happened.append, "second")
        queue.run()
        assert happened == ["first", "second", "caused"]

    @pytest.mark.parametrize("time_s", [0.5, math.nan])
    def test_the_past_and_no_time_at_all_are_refused(self, time_s: float) -> None:
        """A wrong sum of seconds must not go unnoticed."""
        queue = EventQueue()
        queue.at(1.0, lambda _: None)
        queue.run()
        with pytest.raises(ValueError, match="nothing can happen"):
            queue.at(time_s, lambda _: None)
        with pytest.raises(ValueError, match="nothing can happen"):
            queue.in_turn(time_s, lambda _: None, None)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3))))
    def test_what_is_scheduled_in_turn_happens_when_it_would_otherwise(self, plan: list[tuple[bool, int, int]]) -> None:
        """Whatever is scheduled in turn, and what that schedules later: the order is that of time and of scheduling."""

        def run(*, with_turns: bool) -> list[tuple[float, int]]:
            queue = EventQueue()
            happened: list[tuple[float, int]] = []

            def happen(number: int) -> None:
                happened.append((queue.now, number))
                if number < len(plan):
                    in_turn, _, delay_s = plan[number]
                    schedule = queue.in_turn if in_turn and with_turns else queue.at
                    schedule(queue.now + delay_s, happen, number + len(plan))

            for number, (in_turn, time_s, _) in enumerate(plan):
                (queue.in_turn if in_turn and with_turns else queue.at)(time_s, happen, number)
            queue.run(3.0)
            happened.append((queue.now, -1))
            queue.run()
            assert queue.is_empty
            return happened

        assert run(with_turns=True) == run(with_turns=False)
