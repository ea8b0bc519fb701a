"""The lines of a stream, as server-sent events with JSON in them."""

from __future__ import annotations

from typing import Any

import orjson

from spotwise.cli.errors import CommandError


def decode_event(line: str) -> dict[str, Any] | None:
    """Decode one line of a stream; `None` for a blank line, a comment, an id and `[DONE]`.

    Raises:
        CommandError: the event is an error, with which the server ended the stream.
        orjson.JSONDecodeError: the data is no JSON.
    """
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return None
    event: dict[str, Any] = orjson.loads(data)
    if "error" in event:
        raise CommandError(f"a stream failed: {event['error'].get('message', event['error'])}")
    return event
