"""The order of a comparison's sides in each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Side = TypeVar("Side")


def in_order_of_round(number: int, sides: Sequence[Side]) -> tuple[Side, ...]:
    """The sides in their order of that round, from 1: A B, then B A, so that neither always gets the warmer machine."""
    return tuple(sides) if number % 2 else tuple(reversed(sides))
