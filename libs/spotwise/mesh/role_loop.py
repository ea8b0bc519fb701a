"""Feeds a role its events and performs its commands.

Law: a role decides, this loop acts. Events are handled one at a time on the asyncio loop; every command is performed by the
one performer of its type, synchronously or by starting background work that ends in another event. Here and nowhere else a
role is fed, so that its journal, where there is one, is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from spotwise.mesh.clock import Clock
from spotwise.mesh.edge import EventEdge
from spotwise.mesh.journal import Journal


class Role(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        """Take in an event and return commands."""


class RoleLoop:
    """One role and the performers of its commands, by command type; its journal, where one is kept."""

    def __init__(
        self,
        role: Role,
        clock: Clock,
        performers: Mapping[type, Callable[[Any], None]],
        journal: Journal | None = None,
    ) -> None:
        self._role = role
        self._clock = clock
        self._performers = performers
        self._journal = journal

    def feed(self, event: Any) -> None:
        """Let the role handle an event, and do what it says."""
        commands: Sequence[Any] = ()
        with EventEdge(type(event).__name__):
            commands = self._handle(event)
        for command in commands:
            # Each by itself: the role counts on all of them, and one lost message must not cost an iteration.
            with EventEdge(type(command).__name__):
                self._performers[type(command)](command)

    def _handle(self, event: Any) -> Sequence[Any]:
        now = self._clock.now()
        if self._journal is None:
            return self._role.handle(event, now)
        try:
            commands = self._role.handle(event, now)
        except Exception as error:
            self._journal.note(event, now, (), error)
            raise
        self._journal.note(event, now, commands, None)
        return commands
