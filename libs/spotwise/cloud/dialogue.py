"""Requests to a cloud's metadata service, independent of the transport, and the timestamps in its answers.

A dialogue is a generator: it yields requests, is sent their answers and returns what it learned. It never raises; problems are
texts that stay the same while their cause does, so that a log can report them once. `HttpClient` carries dialogues out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

import orjson

from spotwise.core.spot.signs import MetadataAnswered


def unix_s(text: Any) -> float | None:
    """Return the Unix time of a date of RFC 3339 (`2026-11-22T15:00:00Z`) or RFC 1123 (`Sun, 22 Nov 2026 15:00:00 GMT`)."""
    if not isinstance(text, str):
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = parse(text.strip())
            return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue  # the date has the other format, or neither
    return None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request of a dialogue.

    Attributes:
        path: with its query, relative to the service's root.
        held_s: how long the service may delay the answer (long polling).
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    held_s: float = 0.0

    def problem(self, what: str) -> str:
        """Return a message that names the request and its problem."""
        return f"{self.method} {self.path.partition('?')[0]}: {what}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer, or the failure to get one.

    Attributes:
        status: `None`: no complete answer arrived.
        headers: names in lower case.
        failure: why no complete answer arrived.
    """

    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def outcome(self) -> str:
        """The status or the failure, as text."""
        return self.failure if self.status is None else f"status {self.status}"

    def text(self) -> str | None:
        """Return the body as one line of printable ASCII; `None` if it is empty or anything else."""
        try:
            line = self.body.decode("ascii").strip()
        except UnicodeDecodeError:
            return None
        return line if line and line.isprintable() else None

    def json_object(self) -> dict[str, Any] | None:
        """Return the body as a JSON object; `None` if it is anything else."""
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None
        return value if isinstance(value, dict) else None


Dialogue = Generator[HttpRequest, HttpAnswer, T]


class Cloud(Protocol):
    """One cloud's metadata service."""

    name: str
    poll_s: float

    def detect(self) -> Dialogue[bool]:
        """Return whether the machine runs in this cloud."""

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Return the current signs; `now` is Unix time."""

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Acknowledge an event, so that it may start; return the problem if it was not accepted."""


def nothing_to_acknowledge(cloud: str) -> Dialogue[str | None]:
    """Return the acknowledging dialogue of a cloud that accepts no acknowledgements."""
    return f"{cloud} takes no acknowledgements"
    yield  # unreachable: it makes this function a generator, as dialogues are
