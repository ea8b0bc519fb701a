"""Configures logging, alike for every service. A log line shows no password of a URL, and logging never raises: a full disk, a
closed pipe or a value that cannot be shown costs the line, not the event that is being handled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog import BoundLoggerBase

from spotwise.mesh.process.logs import LogLimit
from spotwise.mesh.process.server_urls import without_passwords
from spotwise.mesh.service.settings import ServiceSettings


class LossyStream:
    """A text stream that drops what cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or drop."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # the latter where it was closed
            return 0

    def flush(self) -> None:
        """Flush; text that cannot be written stays in the stream's buffer."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return

    def isatty(self) -> bool:
        """Whether a terminal shows it."""
        return not self._stream.closed and self._stream.isatty()


class _Lossy(BoundLoggerBase):
    """Mixed into the filtering logger: a processor that raises costs the line."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *args: Any, **fields: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *args, **fields)
        except Exception:
            # Whatever a processor raises: the event that is being handled must not fail for its log line.
            return None


def configure_logging(settings: ServiceSettings) -> None:
    """Send structlog's and the standard library's log lines to standard error, in the configured format."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    stream: Any = LossyStream(sys.stderr)
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    limit = LogLimit()
    filtering = structlog.make_filtering_bound_logger(level)
    structlog.configure(
        processors=[
            limit,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _redact,
            renderer,
        ],
        wrapper_class=type("LossyBoundLogger", (_Lossy, filtering), {}),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(member=settings.service_id)
    # A handler that cannot write would report it on standard error, which cannot be written either.
    logging.raiseExceptions = False
    handler = logging.StreamHandler(stream)
    handler.addFilter(limit.filter)
    handler.setFormatter(_RedactingFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING))


def _redact(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in fields.items():
        if isinstance(value, str):
            fields[name] = without_passwords(value)
        elif isinstance(value, BaseException):
            fields[name] = without_passwords(repr(value))
    return fields


class _RedactingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the line without passwords, those in a traceback included."""
        return without_passwords(super().format(record))
