"""Feeds events to a role and performs its commands. One event at a time on the asyncio loop. A command's performer acts at once
or starts background work that ends in another event. Only this loop feeds a role, so that its journal is complete, and its
times are by the member's steady clock (`journal.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from spotwise.mesh.process.clock import MemberClock
from spotwise.mesh.process.logs import LoggedErrors
from spotwise.mesh.service.journal import Journal, shifted


class Role(Protocol):
    """A sans-IO state machine."""

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        """Handle an event and return commands."""


class RoleLoop:
    """One role, the performers of its commands by command type, its journal, if any, and what counts its failures."""

    def __init__(
        self,
        role: Role,
        clock: MemberClock,
        performers: Mapping[type, Callable[[Any], None]],
        journal: Journal | None = None,
        count_failure: Callable[[], object] | None = None,
    ) -> None:
        self._role = role
        self._clock = clock
        self._performers = performers
        self._journal = journal
        self._count_failure = count_failure

    def feed(self, event: Any) -> None:
        """Let the role handle an event, and perform its commands."""
        commands: Sequence[Any] = ()
        ahead_s = self._clock.ahead_s
        with LoggedErrors(type(event).__name__, self._count_failure):
            commands = self._handle(shifted(event, -ahead_s))
        for command in commands:
            # Each by itself: one that fails must not cost the others.
            with LoggedErrors(type(command).__name__, self._count_failure):
                self._performers[type(command)](shifted(command, ahead_s))

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
