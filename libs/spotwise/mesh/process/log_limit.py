"""Limits repeated log lines, so that neither a fault nor a client's messages fill a disk: of each event and level so many lines
a period are written, and the first line of the next period says how many were not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

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
