"""Logs unexpected errors of event handling, so that one bad message does not stop a service."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import structlog

_log = structlog.get_logger(__name__)


class LoggedErrors:
    """Logs and drops an exception of one event, after `count`; expected failures are events and replies. No generator: it
    wraps every event.
    """

    __slots__ = ("_count", "_event")

    def __init__(self, event: str, count: Callable[[], object] | None = None) -> None:
        self._event = event
        self._count = count

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._count is not None:
            self._count()
        _log.error("event_failed", on=self._event, exc_info=error)
        return True
