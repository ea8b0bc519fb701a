"""Bounds what a grammar's `multipleOf` costs to compile: as much as the number, which llguidance bounds nowhere.

It makes an automaton with a state for each remainder: of numbers with decimals once these are scaled away, of numbers that must
hold together for each remainder of their least common multiple. To free one holds the interpreter's lock, a millisecond for
each thousand states.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

#: States of all multiples of a grammar: a little more than the seconds of a day, which take half a second to compile.
MAX_MULTIPLE_STATES = 90_000
#: Digits before and after the point.
_MAX_DIGITS = 18
_EMBEDDED_SCHEMA = "%json"
#: Keywords by which several schemas may hold for one number.
_COMBINING = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "patternProperties", "dependentSchemas"}
)


@dataclass(slots=True)
class _Multiples:
    """What the schemas of a grammar say of multiples.

    Attributes:
        hold_together: several of them may hold for one number.
    """

    numbers: list[Decimal] = field(default_factory=list)
    hold_together: bool = False

    def states(self) -> int | None:
        """Return how many states they have, at most; `None`: numbers of so many digits are not counted."""
        positive = [each for each in self.numbers if each.is_finite() and each > 0]
        if not all(abs(each.adjusted()) <= _MAX_DIGITS and _decimals(each) <= _MAX_DIGITS for each in positive):
            return None
        if not self.hold_together:
            return sum(int(each.scaleb(_decimals(each))) for each in positive)
        scale = 10 ** max(map(_decimals, positive), default=0)
        return math.lcm(*(int(each * scale) for each in positive)) * len(positive)


def multiples_problem(grammar: str) -> str:
    """Return why a grammar's multiples, of its JSON schemas wherever they are, would take too long; empty where they do not."""
    if "multipleOf" not in grammar and "\\u" not in grammar:
        return ""
    multiples = _Multiples()
    _collect(grammar, multiples)
    states = multiples.states()
    if states is not None and states <= MAX_MULTIPLE_STATES:
        return ""
    counted = "least common multiple, times their number," if multiples.hold_together else "sum"
    return (
        f"its 'multipleOf' would take too long to compile: their {counted} may be at most {MAX_MULTIPLE_STATES}, once decimals "
        "are scaled away"
    )


def _decimals(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _collect(text: str, into: _Multiples) -> None:
    """Collect the multiples of a JSON text, or of the schemas that a Lark grammar embeds."""

    def take(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if isinstance(value, str) and _EMBEDDED_SCHEMA in value:
                _collect(value, into)
            elif key == "multipleOf" and isinstance(value, Decimal):
                into.numbers.append(value)
            elif key in _COMBINING:
                into.hold_together = True

    decoder = json.JSONDecoder(object_pairs_hook=take, parse_int=Decimal, parse_float=Decimal)
    parts = [text] if text.lstrip().startswith("{") else text.split(_EMBEDDED_SCHEMA)[1:]
    into.hold_together |= len(parts) > 1
    for part in parts:
        try:
            decoder.raw_decode(part.lstrip())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
