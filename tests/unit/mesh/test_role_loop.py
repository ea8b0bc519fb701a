"""The loop between a role and the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from structlog.testing import capture_logs

from spotwise.mesh.service.role_loop import RoleLoop
from tests.fakes.memory import FakeClock


class Echo:
    """A role that returns every event as a command, and notes when."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        """Return the event's items as commands."""
        self.at_s.append(now)
        if not event:
            raise RuntimeError("a bug in the role")
        return list(event)


def test_commands_are_performed_in_order_by_the_performer_of_their_type() -> None:
    """Commands run in order, by the performer of their type, and the role gets the loop's clock."""
    role, clock = Echo(), FakeClock(now_s=5.0)
    done: list[Any] = []
    loop = RoleLoop(role, clock, {int: done.append, str: lambda text: done.append(text.upper())})
    loop.feed((1, "a", 2))
    clock.advance(1.5)
    loop.feed(("b",))
    assert done == [1, "A", 2, "B"]
    assert role.at_s == [5.0, 6.5]


def test_a_command_that_fails_costs_no_other() -> None:
    """A failing command is logged by its name, and the commands and events after it are carried out."""
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
