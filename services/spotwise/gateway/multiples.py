"""Bounds what a grammar's `multipleOf` costs to compile: as much as the number, which llguidance bounds nowhere.

It makes an automaton with a state for each remainder: of numbers with decimals once these are scaled away, of numbers that must
hold together for each remainder of their least common multiple.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

#: States of all multiples of a grammar, each taken to be as large as their least common multiple: some 3 s of compilation.
MAX_MULTIPLE_STATES = 300_000
#: Digits before and after the point.
_MAX_DIGITS = 18
_EMBEDDED_SCHEMA = "%json"


def multiples_problem(grammar: str) -> str:
    """Return why a grammar's multiples, of its JSON schemas wherever they are, would take too long; empty where they do not."""
    if "multipleOf" not in grammar and "\\u" not in grammar:
        return ""
    multiples: list[Decimal] = []
    _collect(grammar, multiples)
    positive = [each for each in multiples if each.is_finite() and each > 0]
    if not positive:
        return ""
    if all(abs(each.adjusted()) <= _MAX_DIGITS and _decimals(each) <= _MAX_DIGITS for each in positive):
        scale = 10 ** max(map(_decimals, positive))
        if math.lcm(*(int(each * scale) for each in positive)) * len(positive) <= MAX_MULTIPLE_STATES:
            return ""
    return (
        "its 'multipleOf' would take too long to compile: their least common multiple, times their number, may be at most "
        f"{MAX_MULTIPLE_STATES}, once decimals are scaled away"
    )


def _decimals(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return max(0, -exponent)


def _collect(text: str, into: list[Decimal]) -> None:
    """Append the multiples of a JSON text, or of the schemas that a Lark grammar embeds."""

    def take(pairs: list[tuple[str, Any]]) -> None:
        for key, value in pairs:
            if isinstance(value, str) and _EMBEDDED_SCHEMA in value:
                _collect(value, into)
            elif key == "multipleOf" and isinstance(value, Decimal):
                into.append(value)

    decoder = json.JSONDecoder(object_pairs_hook=take, parse_int=Decimal, parse_float=Decimal)
    parts = [text] if text.lstrip().startswith("{") else text.split(_EMBEDDED_SCHEMA)[1:]
    for part in parts:
        try:
            decoder.raw_decode(part.lstrip())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
