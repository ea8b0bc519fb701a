"""Repeated log lines are limited, and nothing else is."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import structlog

from spotwise.mesh.process.logs import LINES, PERIOD_S, LogLimit


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
    """The lines that come through."""
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
