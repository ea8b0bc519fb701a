"""Logging that neither raises, nor shows a password, nor repeats a line without limit."""

from __future__ import annotations

import errno
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from spotwise.mesh.process.logs import LINES, PERIOD_S, LogLimit
from spotwise.mesh.process.server_urls import without_passwords
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.mesh.service.telemetry import configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, raises = logging.getLogger(), logging.raiseExceptions
    handlers = list(root.handlers)
    yield
    root.handlers[:] = handlers
    logging.raiseExceptions = raises
    structlog.contextvars.clear_contextvars()


class Unwritable(io.StringIO):
    """A full disk, or a pipe without a reader."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, _text: str) -> int:
        raise OSError(self.number, "cannot write")

    def flush(self) -> None:
        raise OSError(self.number, "cannot flush")


def configured(monkeypatch: pytest.MonkeyPatch, stream: Any, **options: Any) -> Any:
    monkeypatch.setattr(sys, "stderr", stream)
    logging.getLogger().handlers.clear()  # pytest's, of which there are new ones in each test
    configure_logging(ServiceSettings(service_id="member-1", **options))
    return structlog.get_logger("test")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE, errno.EIO])
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_stream_that_cannot_be_written_costs_the_line(
    monkeypatch: pytest.MonkeyPatch, number: int, log_format: str
) -> None:
    log = configured(monkeypatch, Unwritable(number), log_format=log_format)
    log.info("ready", kind="worker")
    log.error("event_failed", exc_info=ValueError("a bug"))
    logging.getLogger("library").error("broken")


def test_a_closed_stream_costs_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    log = configured(monkeypatch, stream)
    stream.close()
    log.info("left")
    logging.getLogger("library").error("broken")


def test_a_value_that_cannot_be_shown_costs_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("not now")

        __str__ = __repr__

    stream = io.StringIO()
    log = configured(monkeypatch, stream, log_format="json")
    log.info("shy", value=Shy())
    log.info("open", value=1)
    assert "open" in stream.getvalue()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_line_shows_a_password(monkeypatch: pytest.MonkeyPatch, log_format: str) -> None:
    stream = io.StringIO()
    log = configured(monkeypatch, stream, log_format=log_format)
    url = "nats://spotwise:hush-hush@127.0.0.1:4222"
    log.warning("nats_disconnected", url=url, error=OSError(f"no answer at {url}"))
    try:
        raise OSError(f"no answer at {url}")
    except OSError as error:
        log.error("event_failed", exc_info=error)
    logging.getLogger("library").error("no answer at %s", url)
    assert "hush" not in stream.getvalue()
    assert stream.getvalue().count("127.0.0.1:4222") >= 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://user:p/a@ss@host:6379/0 is away", "rediss://***@host:6379/0 is away"),
        ('at "nats://token@broker:4222", and http://host/v1', 'at "nats://***@broker:4222", and http://host/v1'),
        ("mail me@example.org about http://host", "mail me@example.org about http://host"),
    ],
)
def test_urls_are_shown_without_user_and_password(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


class Clock:
    def __init__(self) -> None:
        self.now = 7.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> LogLimit:
    return LogLimit(clock)


def written(limit: LogLimit, event: str, times: int = 1, level: str = "warning") -> list[dict[str, Any]]:
    lines = []
    for number in range(times):
        try:
            lines.append(dict(limit(None, level, {"event": event, "number": number})))
        except structlog.DropEvent:
            continue
    return lines


def test_an_event_has_so_many_lines_a_period(limit: LogLimit, clock: Clock) -> None:
    """Those too many are counted, and the first of the next period says how many there were."""
    assert len(written(limit, "malformed_message", LINES + 50)) == LINES
    clock.now += PERIOD_S
    first, second = written(limit, "malformed_message", 2)
    assert first["suppressed"] == 50
    assert "suppressed" not in second
    clock.now += PERIOD_S
    assert "suppressed" not in written(limit, "malformed_message")[0]


def test_other_events_and_levels_are_not_limited_by_it(limit: LogLimit) -> None:
    """A flood of one must not hide another."""
    written(limit, "malformed_message", LINES * 2)
    assert len(written(limit, "stuck")) == len(written(limit, "malformed_message", level="error")) == 1


def test_made_up_events_are_limited_together(limit: LogLimit) -> None:
    """They take neither memory nor disk without bound."""
    lines = sum(len(written(limit, f"event {number}")) for number in range(10_000))
    assert lines < 2000


def test_the_standard_librarys_lines_are_limited_alike(limit: LogLimit) -> None:
    records = [logging.makeLogRecord({"msg": "bad %s", "args": (number,)}) for number in range(LINES + 5)]
    assert sum(limit.filter(record) for record in records) == LINES
