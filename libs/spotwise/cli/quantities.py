"""Bytes and seconds as people read them, and lists of numbers in an option, like `--rates 0.5,1,2`."""

from __future__ import annotations

import math
from typing import TypeVar

from spotwise.cli.errors import OptionError

_Number = TypeVar("_Number", int, float)


def ascending(text: str, number: type[_Number], option: str, wanted: str) -> list[_Number]:
    """Return the comma-separated positive, finite numbers of `text` in ascending order, each once.

    Args:
        wanted: what to write instead, with an example; for the message.

    Raises:
        OptionError: `text` is no such list; names `option`.
    """
    try:
        numbers = sorted({number(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not 0 < numbers[0] <= numbers[-1] < math.inf:
        raise OptionError(f"{option} {text!r}: write {wanted}")
    return numbers


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


def duration_text(seconds: float) -> str:
    """Return seconds, long ones in minutes, hours or days."""
    if seconds == math.inf:
        return "for ever"
    for unit, unit_s, part, part_s in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= unit_s:
            whole = int(seconds // unit_s)
            return f"{whole} {unit} {int((seconds - whole * unit_s) // part_s)} {part}"
    return f"{seconds:.0f} s"
