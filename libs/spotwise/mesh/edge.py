"""The outer edge of the event loop: where an unexpected error stops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import structlog

_log = structlog.get_logger(__name__)


@contextlib.contextmanager
def event_edge(event: str) -> Iterator[None]:
    """Log what handling one event raised, and let the next one come: one bad message must not stop a service.

    This is the only broad `except` of the mesh. Expected failures never get here: they are events and answers.
    """
    try:
        yield
    except Exception:
        _log.exception("event_failed", on=event)
