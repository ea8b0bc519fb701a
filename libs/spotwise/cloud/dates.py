"""Parses the clouds' timestamps to Unix seconds; one without a zone is UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any


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
