"""Tries a grammar with a model's tokens, by the code of an engine: one that is wrong, too complex or not kept to is refused.

It makes an automaton with a state for each remainder: of numbers with decimals once these are scaled away, of numbers that must
hold together for each remainder of their least common multiple. To free one holds the interpreter's lock, a millisecond for
each thousand states.

A grammar knows the names that a schema lists, and gives each of them once. Names that only a pattern describes, or none, may
come again: a parsed object then has fewer members than `minProperties` asks for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock
from typing import Any

from llguidance import LLTokenizer

from spotwise.engine.sampling.grammar_following import trial_problem
from spotwise.mesh.process.long_work import begin_long_work

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


#: Keywords whose values are no schemas.
_VALUES = frozenset({"const", "enum", "default", "examples"})


def promises_problem(grammar: str) -> str:
    """Return what a grammar's schemas, wherever they are, ask for and cannot be given; empty where there is nothing."""
    if "minProperties" not in grammar and "\\u" not in grammar:
        return ""
    for schema in _objects(grammar):
        least = schema.get("minProperties")
        if not isinstance(least, int | float) or isinstance(least, bool):
            continue
        required = schema.get("required")
        named = len(set(map(str, required))) if isinstance(required, list) else 0
        if least > named + 1 and not _lists_all_names(schema):
            return (
                f"'minProperties' is {least}, which cannot be held to where names are free: a name may come twice. List all "
                "of them but one in 'required'"
            )
    return ""


def _lists_all_names(schema: dict[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Give the objects of a JSON text, and of the schemas that a Lark grammar embeds, but for values."""
    decoder = json.JSONDecoder()
    for part in [text] if text.lstrip().startswith("{") else text.split(_EMBEDDED_SCHEMA)[1:]:
        try:
            found, _ = decoder.raw_decode(part.lstrip())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong with it
        yield from _inside(found)


def _inside(found: Any) -> Iterator[dict[str, Any]]:
    waiting = [found]
    while waiting:
        match waiting.pop():
            case dict() as each:
                yield each
                waiting.extend(value for key, value in each.items() if key not in _VALUES)
            case list() as each:
                waiting.extend(each)
            case str() as each if _EMBEDDED_SCHEMA in each:
                yield from _objects(each)


#: Verdicts on grammars that are remembered: requests with the same schema follow one another.
_KEPT_VERDICTS = 256


class GrammarCheck:
    """Tries grammars with a model's tokens, on no event loop.

    Args:
        load: the model's tokens, on first use.
    """

    def __init__(self, load: Callable[[], LLTokenizer]) -> None:
        self._load = load
        self._loading, self._remembering = Lock(), Lock()
        self._tokenizer: LLTokenizer | None = None
        #: By the grammar's digest: grammars may be large.
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()

    def problem(self, grammar: str) -> str:
        """Return why a grammar cannot be followed; empty where it can.

        Raises:
            LongWorkError: it is not known, and may not be tried here.
        """
        digest = hashlib.blake2b(grammar.encode(), digest_size=32).digest()
        with self._remembering:
            if (known := self._verdicts.get(digest)) is not None:
                self._verdicts.move_to_end(digest)
                return known
        begin_long_work()
        found = self._problem(grammar)
        with self._remembering:
            self._verdicts[digest] = found
            if len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)
        return found

    def _problem(self, grammar: str) -> str:
        if problem := multiples_problem(grammar) or promises_problem(grammar):
            return problem
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load()
        return trial_problem(self._tokenizer, grammar)
