"""Bytes and seconds as people read them."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """Return a number of bytes in its largest binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.2f} TiB"


def seconds_text(seconds: float) -> str:
    """Return seconds, short ones in milliseconds."""
    return f"{1000 * seconds:,.0f} ms" if seconds < 1 else f"{seconds:,.2f} s"
