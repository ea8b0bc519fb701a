"""How much of an answer a client has: the `id` of every event where it asks for them, which it sends back as `Last-Event-ID`.

`REQUEST_ID.POSITION`; the position is opaque to clients. It has the tokens of each choice that the client has received, a
checksum of their ids, and which choices are over; then, how many it has of the events that follow on those. Text and
log-probabilities follow from the tokens, whatever pieces they came in; with another checksum the stream would go on with
another answer.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.http.errors import bad_request

_CHOICE = re.compile(r"([0-9]{1,9})-([0-9a-f]{1,8})(z?)")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EVENTS = re.compile(r"[0-9]{0,9}")


@dataclass(slots=True)
class ChoicePosition:
    """How much of one choice a client has."""

    tokens: int = 0
    checksum: int = 0
    has_end: bool = False

    def add(self, token_ids: Sequence[int], *, is_end: bool) -> None:
        """Count the next tokens."""
        self.tokens += len(token_ids)
        self.checksum = zlib.crc32(array("I", token_ids), self.checksum)
        self.has_end = is_end


class StreamPosition:
    """How much of an answer of several choices a client has; `events`: so many of those that follow on its tokens."""

    def __init__(self, request_id: str, choices: Sequence[ChoicePosition], events: int = 0) -> None:
        self.request_id = request_id
        self.choices = choices
        self.events = events
        self._prefix = f"id: {request_id}.".encode()
        self._written = [_written(choice) for choice in choices]

    @classmethod
    def start(cls, request_id: str, choices: int) -> StreamPosition:
        """Return the position before all tokens."""
        return cls(request_id, [ChoicePosition() for _ in range(choices)])

    @classmethod
    def parse(cls, event_id: str) -> StreamPosition:
        """Return the position of a `Last-Event-ID`.

        Raises:
            ApiError: 400, it is none of this API's.
        """
        request_id, _, position = event_id.partition(".")
        position, _, events = position.partition(".")
        matches = [_CHOICE.fullmatch(each) for each in position.split("_")] if len(position) < 1 << 13 else [None]
        choices = [ChoicePosition(int(m[1]), int(m[2], 16), bool(m[3])) for m in matches if m is not None]
        if not _REQUEST_ID.fullmatch(request_id) or len(choices) != len(matches) or not _EVENTS.fullmatch(events):
            raise bad_request(
                "Invalid 'Last-Event-ID': send back the id of the last event that you received.",
                code="invalid_event_id",
            )
        return cls(request_id, choices, int(events or 0))

    @property
    def is_start(self) -> bool:
        """Whether the client has nothing that says more than that the answer begins."""
        return not any(choice.tokens or choice.has_end for choice in self.choices)

    def line(self) -> bytes:
        """Return the event's line of the position."""
        return self._prefix + b"_".join(self._written) + (b".%d\n" % self.events if self.events else b"\n")

    def take_events(self) -> int:
        """Return how many events the client has after its tokens, and count them anew from here on."""
        had, self.events = self.events, 0
        return had

    def add(self, index: int, token_ids: Sequence[int], *, is_end: bool) -> None:
        """Count a choice's next tokens."""
        if not token_ids and not is_end:
            return
        self.events = 0
        choice = self.choices[index]
        choice.add(token_ids, is_end=is_end)
        self._written[index] = _written(choice)


def _written(choice: ChoicePosition) -> bytes:
    return b"%d-%x%b" % (choice.tokens, choice.checksum, b"z" if choice.has_end else b"")
