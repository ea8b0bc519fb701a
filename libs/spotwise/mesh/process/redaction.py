"""Removes passwords from messages and logs."""

from __future__ import annotations

import re

# Up to the last @ of a word: a password may hold one, or a slash, that its user did not escape.
_CREDENTIALS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>]*@")


def without_passwords(text: str) -> str:
    """Return the text with user and password of every URL in it replaced by stars."""
    return _CREDENTIALS.sub(r"\1***@", text) if "://" in text else text
