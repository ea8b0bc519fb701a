"""Log lines: none too often, one for each unexpected error of event handling, and counts of refused connections."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any

import structlog

_log = structlog.get_logger(__name__)


#: Lines of one event and level in each period.
LINES = 200
PERIOD_S = 60.0
#: Events counted at a time; their names are few, unless a library makes them up.
_EVENTS = 1024


class LogLimit:
    """A structlog processor; also a filter of the standard library's handlers. `monotonic` is in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._lines: dict[tuple[str, str], int] = {}
        self._suppressed: dict[tuple[str, str], int] = {}

    def __call__(self, _logger: object, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return a line, with the number of those suppressed before it; raises `DropEvent` for one too many."""
        suppressed = self._count(method, str(fields.get("event")))
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            fields["suppressed"] = suppressed
        return fields

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record of the standard library is written; its text before formatting is the event."""
        return self._count(record.levelname, f"{record.name}: {record.msg}") is not None

    def _count(self, level: str, event: str) -> int | None:
        """Count a line; return how many were suppressed in the period before, `None` for one that is too many."""
        now_s = self._monotonic()
        if now_s - self._began_s >= PERIOD_S:
            self._began_s = now_s
            self._suppressed = {key: lines - LINES for key, lines in self._lines.items() if lines > LINES}
            self._lines = {}
        key = level, event
        if key not in self._lines and len(self._lines) >= _EVENTS:
            key = level, ""
        lines = self._lines[key] = self._lines.get(key, 0) + 1
        return None if lines > LINES else self._suppressed.pop(key, 0)


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


#: Between two lines about one reason.
LOG_EVERY_S = 10.0


class RefusedConnections:
    """The refusals of one port, by reason; `plane` names it in the log."""

    def __init__(self, plane: str) -> None:
        self._plane = plane
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}

    @property
    def by_reason(self) -> dict[str, int]:
        """How many were refused for each reason so far."""
        return dict(self._counts)

    @property
    def total(self) -> int:
        """How many were refused so far."""
        return self._counts.total()

    def count(self, reason: str, detail: str, peer_host: str | None = None) -> None:
        """Count one; `reason` is one of few, `detail` for a reader."""
        self._counts[reason] += 1
        now_s, count = time.monotonic(), self._counts[reason]
        logged_s, logged = self._logged.get(reason, (None, 0))
        if logged_s is None or now_s - logged_s >= LOG_EVERY_S:
            self._logged[reason] = (now_s, count)
            _log.warning(
                "connection_refused",
                plane=self._plane,
                reason=reason,
                detail=detail,
                peer=peer_host,
                times=count - logged,
            )
