"""Feeds a role its events and performs its commands.

Law: a role decides, this loop acts. Events are handled one at a time on the asyncio loop; every command is performed by the
one performer of its type, synchronously or by starting background work that ends in another event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from spotwise.mesh.clock import Clock
from spotwise.mesh.edge import event_edge


class Role(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        """Take in an event and return commands."""


class RoleLoop:
    """One role and the performers of its commands, by command type."""

    def __init__(self, role: Role, clock: Clock, performers: Mapping[type, Callable[[Any], None]]) -> None:
        self._role = role
        self._clock = clock
        self._performers = performers

    def feed(self, event: Any) -> None:
        """Let the role handle an event, and do what it says."""
        commands: Sequence[Any] = ()
        with event_edge(type(event).__name__):
            commands = self._role.handle(event, self._clock.now())
        for command in commands:
            # Each by itself: the role counts on all of them, and one lost message must not cost an iteration.
            with event_edge(type(command).__name__):
                self._performers[type(command)](command)
