"""Server-sent events of the OpenAI API's streams."""

from __future__ import annotations

from typing import Any

import orjson


def decode_event(line: str) -> dict[str, Any] | None:
    """Decode one line of a stream; `None` for a blank line, a comment and `[DONE]`. Raises `orjson.JSONDecodeError`."""
    data = line.removeprefix("data:").strip()
    return orjson.loads(data) if line.startswith("data:") and data != "[DONE]" else None
