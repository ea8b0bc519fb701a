"""Tests of virtual token counters: the order of tenants."""

from __future__ import annotations

from spotwise.core.worker.scheduling.policies import VirtualTokenCounters


def turns(counters: VirtualTokenCounters, jobs: list[str], worth: float = 2.0) -> list[str]:
    """Jobs are named after their tenant, a letter, and a number."""
    return counters.in_turn(jobs, lambda job: job[0], lambda job: worth)


class TestTurns:
    """Rows go to the least served tenant."""

    def test_one_tenant_keeps_its_order(self) -> None:
        assert turns(VirtualTokenCounters(), ["a2", "a1"]) == ["a2", "a1"]

    def test_equals_take_turns(self) -> None:
        """Equal tenants alternate, starting with the first of the list, each in its own order."""
        assert turns(VirtualTokenCounters(), ["b1", "a1", "a2", "a3", "b2"]) == ["b1", "a1", "b2", "a2", "a3"]

    def test_a_tenant_that_was_served_less_catches_up(self) -> None:
        counters = VirtualTokenCounters()
        counters.charge("a", 2, 2)  # 1 x 2 + 2 x 2
        assert turns(counters, ["a1", "a2", "b1", "b2", "b3", "b4"]) == ["b1", "b2", "b3", "a1", "b4", "a2"]


class TestComingBack:
    """Idle tenants save no turns up, and lose none."""

    def test_a_newcomer_starts_with_the_least_of_those_that_have_work(self) -> None:
        """A new tenant starts with the least counter of the busy ones, since from 0 it would monopolize the machine."""
        counters = VirtualTokenCounters()
        counters.note_busy(["a", "b"], [])
        counters.charge("a", 100, 0)
        counters.charge("b", 50, 0)
        counters.note_busy(["a", "b", "c"], ["a", "b"])
        assert counters.served("c") == 50

    def test_a_tenant_that_was_served_more_stays_behind(self) -> None:
        """Leaving for a moment wipes nothing out."""
        counters = VirtualTokenCounters()
        counters.note_busy(["a", "b"], [])
        counters.charge("a", 100, 0)
        counters.note_busy(["b"], ["a", "b"])
        counters.note_busy(["a", "b"], ["b"])
        assert counters.served("a") == 100

    def test_after_a_pause_of_all_it_starts_where_the_last_was(self) -> None:
        """After a pause of all tenants the first to return starts at the last counter, like the second."""
        counters = VirtualTokenCounters()
        counters.note_busy(["a"], [])
        counters.charge("a", 100, 0)
        counters.note_busy([], ["a"])
        counters.note_busy(["b"], [])
        assert counters.served("b") == 100

    def test_idle_tenants_that_have_no_more_than_others_are_forgotten(self) -> None:
        """However many there were; a counter that would be lifted anyway need not be kept."""
        counters = VirtualTokenCounters()
        for number in range(100):
            tenant, before = f"t{number}", [f"t{number - 1}"] if number else []
            counters.note_busy([tenant], before)
            counters.charge(tenant, 10, 0)
        assert len(counters) <= 2
