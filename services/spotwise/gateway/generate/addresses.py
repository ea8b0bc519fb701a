"""Messages for clients without the mesh's addresses: those are for logs."""

from __future__ import annotations

import re

_ADDRESS = re.compile(
    r"""
    [a-z][a-z0-9+.-]*://[^\s,;'"]+               # a URL, with whatever password it has
    | \[[0-9a-f:.]+\](?::\d+)?                   # [IPv6], IPv6, IPv4, host:port
    | (?<![\w:])(?:[0-9a-f]{1,4})?(?::{1,2}[0-9a-f]{1,4}){2,8}(?![\w:])
    | (?<![\w:])::(?:[0-9a-f]{1,4})(?![\w:])
    | \b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b
    | \b[a-z0-9][\w.-]*:\d{2,5}\b
    | (?<![\w.])/(?:[\w.+-]+/)+[\w.+-]*          # an absolute path
    """,
    re.VERBOSE | re.IGNORECASE,
)


def without_addresses(message: str) -> str:
    """Return the message with URLs, hosts with ports, IP addresses and paths as `…`."""
    return _ADDRESS.sub("…", message)
