"""JSON schemas that a grammar's answers would not keep to, though the grammar is followed: they are refused.

A grammar knows the names that a schema lists, and gives each of them once. Names that only a pattern describes, or none, may
come again: a parsed object then has fewer members than `minProperties` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_EMBEDDED_SCHEMA = "%json"
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
