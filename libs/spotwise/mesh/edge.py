"""The outer edge of the event loop: where an unexpected error stops."""

from __future__ import annotations

from types import TracebackType

import structlog

_log = structlog.get_logger(__name__)


class EventEdge:
    """Logs what handling one event raised, and lets the next one come: one bad message must not stop a service.

    This is the only broad `except` of the mesh. Expected failures never get here: they are events and answers.
    A class and no generator: it stands around every event and every command.
    """

    __slots__ = ("_event",)

    def __init__(self, event: str) -> None:
        self._event = event

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        _log.error("event_failed", on=self._event, exc_info=error)
        return True
