"""Logs unexpected errors of event handling, so that one bad message does not stop a service."""

from __future__ import annotations

from types import TracebackType

import structlog

_log = structlog.get_logger(__name__)


class LoggedErrors:
    """Logs and drops an exception of one event; expected failures are events and replies. No generator: it wraps
    every event.
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
