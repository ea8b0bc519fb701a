"""The loop between a role and the world, a member's clocks, and times where the wall clock was set since its start."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from structlog.testing import capture_logs

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.spot import commands as s
from spotwise.core.spot.signs import MetadataAnswered, Sign
from spotwise.core.worker import commands as c
from spotwise.mesh.process.clock import STEADY_S, SystemClock
from spotwise.mesh.service.journal import TIMES, shifted
from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock


class Echo:
    """A role that returns every event as a command, and notes when."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        self.at_s.append(now)
        if not event:
            raise RuntimeError("a bug in the role")
        return list(event)


def test_commands_are_performed_in_order_by_the_performer_of_their_type() -> None:
    role, clock = Echo(), FakeClock(now_s=5.0)
    done: list[Any] = []
    loop = RoleLoop(role, clock, {int: done.append, str: lambda text: done.append(text.upper())})
    loop.feed((1, "a", 2))
    clock.advance(1.5)
    loop.feed(("b",))
    assert done == [1, "A", 2, "B"]
    assert role.at_s == [5.0, 6.5]


def test_a_command_that_fails_costs_no_other() -> None:
    done: list[Any] = []

    def fails(text: str) -> None:
        raise ValueError(text)

    loop = RoleLoop(Echo(), FakeClock(), {int: done.append, str: fails})
    with capture_logs() as logs:
        loop.feed((1, "bad", 2, 3.0, 4))
        loop.feed(())
        loop.feed((5,))
    assert done == [1, 2, 4, 5]
    assert [each["on"] for each in logs] == ["str", "float", "tuple"]


HOUR_S = 3600.0
#: How absolute times are named; `began_s` and such are of roles, which have no other clock.
NAMES = (
    "deadline_s",
    "deadline_unix_s",
    "arrival_unix_s",
    "until_s",
    "at_s",
    "leaves_at_s",
    "launched_s",
    "arrivals_s",
)
#: Of a provider's offers, for people only.
SHOWN = {(m.InstanceOffer, "refused_until_s")}


class Noting:
    """Notes what it receives, and commands what it is set to."""

    def __init__(self, *commands: Any) -> None:
        self.received: list[Any] = []
        self._commands = commands

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        self.received.append((event, now))
        return self._commands


def test_a_role_receives_times_by_its_own_clock_and_others_get_theirs() -> None:
    """A deadline of an hour ago by the clock of the start is one of now, once that clock has been set back."""
    clock = FakeClock(10_000.0)
    notice = m.Drain("w", 10_000.0 + 30.0)
    role, published = Noting(s.PublishNotice(notice)), []
    loop = RoleLoop(role, clock, {s.PublishNotice: lambda command: published.append(command.notice)})
    clock.ahead_s = -HOUR_S
    told = m.Drain("w", clock.wall() + 5.0)
    loop.feed(told)
    assert role.received == [(m.Drain("w", 10_005.0), 10_000.0)]
    assert published == [m.Drain("w", clock.wall() + 30.0)]


def test_times_within_others_are_translated_and_all_else_stays() -> None:
    sign = Sign("event", "aws", 50.0)
    assert shifted(MetadataAnswered((sign, Sign("hint", "aws")), "slow"), 5.0) == MetadataAnswered(
        (Sign("event", "aws", 55.0), Sign("hint", "aws")), "slow"
    )
    load = m.LoadReported("g", 1, 1, (1.0, 2.0), 30)
    assert shifted(g.PublishLoad(load), -1.0) == g.PublishLoad(m.LoadReported("g", 1, 1, (0.0, 1.0), 30))
    instance = m.FleetInstance("i", "t", Market.SPOT, InstanceState.RUNNING, 100.0, "token", leaves_at_s=None)
    fleet = m.FleetReported("w", 1, 200.0, "aws", (instance,))
    later = shifted(fleet, 1.0)
    assert (later.at_s, later.instances[0].launched_s, later.instances[0].leaves_at_s) == (201.0, 101.0, None)
    for same in (m.Tick(3.0), m.CancelRequest("r", 1), m.Send("w", m.CancelRequest("r", 1)), c.Swapped("r@1")):
        assert shifted(same, 5.0) is same
    assert shifted(fleet, 0.0) is fleet


def test_no_message_has_a_time_that_is_not_translated() -> None:
    """By their names; a new one gets its place in the table."""
    for kind in _parts(m.Message):
        for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            is_time = any(f"_{field.name}".endswith(f"_{name}") for name in NAMES)
            if is_time and (kind, field.name) not in SHOWN:
                assert field.name in TIMES.get(kind, ()), f"{kind.__name__}.{field.name}"
    for kind, names in TIMES.items():
        assert set(names) <= {field.name for field in dataclasses.fields(kind)}


def _parts(*kinds: Any) -> Iterator[type]:
    seen: set[Any] = set()
    left = list(kinds)
    while left:
        kind = left.pop()
        if kind in seen:
            continue
        seen.add(kind)
        left += typing.get_args(kind)
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield kind
            left += typing.get_type_hints(kind).values()


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
