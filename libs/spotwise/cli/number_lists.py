"""Lists of numbers in an option, like `--rates 0.5,1,2`."""

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
