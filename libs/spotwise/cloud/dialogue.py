"""Requests to a cloud's metadata service, independent of the transport.

A dialogue is a generator: it yields requests, is sent their answers and returns what it learned. It never raises; problems are
texts that stay the same while their cause does, so that a log can report them once. `HttpClient` carries dialogues out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import orjson

from spotwise.core.spot.signs import MetadataAnswered

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        path: with its query, from the service's root.
        held_s: how long the service may hold the answer back until there is news.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    held_s: float = 0.0

    def problem(self, what: str) -> str:
        """Return words for what went wrong with it."""
        return f"{self.method} {self.path.partition('?')[0]}: {what}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came of a request.

    Attributes:
        status: `None` where no whole answer came.
        headers: names in lower case.
        failure: why none came.
    """

    status: int | None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def outcome(self) -> str:
        """The status, or why there is none, in words."""
        return self.failure if self.status is None else f"status {self.status}"

    def text(self) -> str | None:
        """Return the body as one line of printable ASCII; `None` where it is none, or empty."""
        try:
            line = self.body.decode("ascii").strip()
        except UnicodeDecodeError:
            return None
        return line if line and line.isprintable() else None

    def json_object(self) -> dict[str, Any] | None:
        """Return the body as a JSON object; `None` where it is none."""
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
        """Find out whether the machine is in this cloud."""

    def query(self, now: float) -> Dialogue[MetadataAnswered]:
        """Find out which signs stand; `now` is Unix time."""

    def acknowledge(self, event_id: str) -> Dialogue[str | None]:
        """Say that an event may begin; returns why that was not taken, if it was not."""


def nothing_to_acknowledge(cloud: str) -> Dialogue[str | None]:
    """The dialogue of a cloud that takes no answer to its signs."""
    return f"{cloud} takes no acknowledgements"
    yield  # a generator, as all dialogues are
