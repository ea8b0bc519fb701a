"""Whose KV goes to the host and whose comes back."""

from __future__ import annotations

import pytest

from spotwise.core.kv_swap import HeldKv, SwapPolicy, WhenFull, choose_to_leave, choose_to_return


def ids(chosen: list[HeldKv]) -> list[str]:
    return [held.job_id for held in chosen]


class TestLeave:
    """The last to run goes first."""

    def test_as_few_as_it_takes_the_last_to_run_first(self) -> None:
        """Blocks add up until there are enough."""
        idle = [HeldKv("soon", 9, 1.0), HeldKv("last", 2, 7.0), HeldKv("late", 3, 5.0)]
        assert ids(choose_to_leave(idle, 2)) == ["last"]
        assert ids(choose_to_leave(idle, 3)) == ["last", "late"]
        assert ids(choose_to_leave(idle, 99)) == ["last", "late", "soon"]
        assert choose_to_leave(idle, 0) == []

    def test_of_equals_the_last_goes(self) -> None:
        """As they are given, which is their order."""
        assert ids(choose_to_leave([HeldKv("a", 1, 1.0), HeldKv("b", 1, 1.0)], 1)) == ["b"]

    def test_whose_blocks_others_hold_too_is_passed_over(self) -> None:
        """Nothing would come free."""
        assert ids(choose_to_leave([HeldKv("a", 1, 1.0), HeldKv("shared", 0, 9.0)], 1)) == ["a"]


class TestReturn:
    """The first to run comes back first."""

    def test_as_many_as_there_is_room_for(self) -> None:
        """And not one more."""
        away = [HeldKv("late", 1, 5.0), HeldKv("soon", 3, 1.0), HeldKv("next", 2, 2.0)]
        assert ids(choose_to_return(away, 5)) == ["soon", "next"]
        assert ids(choose_to_return(away, 6)) == ["soon", "next", "late"]

    def test_nobody_passes_one_that_has_no_room(self) -> None:
        """Else a large one would never come back."""
        assert choose_to_return([HeldKv("large", 3, 1.0), HeldKv("small", 1, 2.0)], 2) == []


class TestSlots:
    """How many are kept free."""

    @pytest.mark.parametrize(("queues", "slots"), [([], 2), ([1, 2, 3, 3], 2), ([1, 1, 2, 2, 3], 4)])
    def test_a_burst_is_what_stands_in_the_uppermost_queues(self, queues: list[int], slots: int) -> None:
        """At least K, else as many as there are jobs in the top K' queues."""
        assert SwapPolicy(WhenFull.PROACTIVE, spare_slots=2, burst_queues=2).slots_to_keep(queues) == slots

    def test_numbers_below_0_are_refused(self) -> None:
        """Of both."""
        with pytest.raises(ValueError, match="spare_slots"):
            SwapPolicy(spare_slots=-1)
