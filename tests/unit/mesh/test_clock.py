"""A member's clocks: one that only goes on, and a wall clock that may be set."""

from __future__ import annotations

from spotwise.mesh.process.clock import STEADY_S, SystemClock


class Machine:
    """Its clocks, in seconds."""

    def __init__(self) -> None:
        self.up_s = 100.0
        self.wall_s = 1_700_000_000.0
        self.clock = SystemClock(lambda: self.wall_s, lambda: self.up_s)

    def pass_by(self, seconds: float, *, looks: int = 4) -> list[float]:
        """Let time pass, with some looks at the wall clock; return what they find."""
        found = []
        for _ in range(looks):
            self.up_s += seconds / looks
            self.wall_s += seconds / looks
            if (ahead_s := self.clock.look()) is not None:
                found.append(ahead_s)
        return found


def test_a_clock_that_is_set_is_followed_once_it_has_stayed_so() -> None:
    """Ahead or back; what lasts is judged as if nothing had been."""
    for step_s in (3600.0, -3600.0):
        machine = Machine()
        clock, began_s = machine.clock, machine.clock.now()
        assert machine.pass_by(60.0) == []
        machine.wall_s += step_s
        assert machine.pass_by(STEADY_S / 2) == []
        assert clock.ahead_s == 0.0
        assert machine.pass_by(STEADY_S) == [step_s]
        assert clock.ahead_s == step_s
        assert clock.wall() == machine.wall_s
        assert clock.now() == began_s + 60.0 + STEADY_S * 1.5
        assert machine.pass_by(60.0) == []


def test_a_clock_that_jumps_and_comes_back_changes_nothing() -> None:
    machine = Machine()
    for step_s in (3600.0, -3600.0):
        machine.wall_s += step_s
        assert machine.pass_by(STEADY_S / 2) == []
        machine.wall_s -= step_s
        assert machine.pass_by(STEADY_S / 2) == []
    machine.wall_s += 5.0
    machine.pass_by(STEADY_S / 2)
    machine.wall_s += 5.0
    assert machine.pass_by(STEADY_S / 2) == []  # set again meanwhile
    assert machine.pass_by(STEADY_S) == [10.0]


def test_a_clock_that_is_slewed_is_followed_as_well() -> None:
    machine = Machine()
    found = []
    for _ in range(1000):
        machine.wall_s += 0.001
        found += machine.pass_by(2.0, looks=2)
    assert 1 <= len(found) <= 4
    assert 0.7 < machine.clock.ahead_s <= 1.0


def test_a_machine_that_was_suspended_has_its_time_again() -> None:
    """Its monotonic clock stood still meanwhile."""
    machine = Machine()
    machine.wall_s += 8 * 3600
    machine.pass_by(2 * STEADY_S)
    assert machine.clock.wall() == machine.wall_s
