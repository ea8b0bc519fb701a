"""Absolute times in what a role receives and commands, where the wall clock was set since the member's start."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from spotwise.core.gateway import commands as g
from spotwise.core.messages import mesh as m
from spotwise.core.messages.fleet import InstanceState, Market
from spotwise.core.spot import commands as s
from spotwise.core.spot.signs import MetadataAnswered, Sign
from spotwise.core.worker import commands as c
from spotwise.mesh.service.journal import TIMES, shifted
from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock

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


class Role:
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
    role, published = Role(s.PublishNotice(notice)), []
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
    """The types of messages, and of what is in them."""
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
