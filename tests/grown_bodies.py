"""Bodies in which one member has grown, for each member that the API's description knows: what may a body cost?

A way of growing makes a value of about a given size in bytes. Ways of a schema are those of its own type, wrong types included,
and those of its members, each in the smallest instance of what is around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Schema = Mapping[str, Any]
#: From a size in bytes to a value.
Make = Callable[[int], Any]
#: Objects in one another, of descriptions that contain themselves.
_DEEPEST = 6
#: Levels of a nested value: as many as bodies may have.
_LEVELS = 90


@dataclass(frozen=True)
class Growth:
    """A way of growing.

    Attributes:
        member: what grows, with dots between a member and its members.
        how: what it grows by.
        make: the whole body.
    """

    member: str
    how: str
    make: Make

    def __str__(self) -> str:
        return f"{self.member}: {self.how}"


def growths(base: Mapping[str, Any], schema: Schema, defs: Mapping[str, Schema]) -> list[Growth]:
    """Return the ways in which each member of a body can grow, and members that no schema has.

    Args:
        base: a body that is right.
        schema: of the body.
        defs: what schemas refer to, by name.
    """
    found = [
        Growth(member, how, partial(_with, base, member.split(".")[0], make))
        for member, how, make in _of_members(_resolved(schema, defs), defs, 0, "")
    ]
    found += [Growth("unknown", how, partial(_with, base, "unknown", make)) for how, make in _anything()]
    found.append(Growth("", "many unknown members", lambda size: {**base, **_members(size)}))
    return found


def _with(base: Mapping[str, Any], name: str, make: Make, size: int) -> dict[str, Any]:
    return {**base, name: make(size)}


def _resolved(schema: Schema, defs: Mapping[str, Schema]) -> Schema:
    while "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    return schema


def _of_members(schema: Schema, defs: Mapping[str, Schema], depth: int, front: str) -> Iterator[tuple[str, str, Make]]:
    for name, each in schema.get("properties", {}).items():
        yield from _ways(each, defs, depth + 1, front + name)


def _ways(schema: Schema, defs: Mapping[str, Schema], depth: int, path: str) -> Iterator[tuple[str, str, Make]]:
    """Give the ways of a member: its path, what it grows by, and its value."""
    schema = _resolved(schema, defs)
    if depth > _DEEPEST:
        return
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        for option in options:
            yield from _ways(option, defs, depth, path)
        return
    match schema.get("type"):
        case "string":
            yield from ((path, how, make) for how, make in _texts())
            yield path, "a list of numbers in place of a text", lambda size: [1] * (size // 2)
        case "integer" | "number":
            yield path, "a number of 19 digits", lambda size: 10**18
            yield path, "a number near the largest", lambda size: 1.7e308
            yield path, "a text in place of a number", lambda size: "9" * size
            yield path, "a list in place of a number", lambda size: [[]] * (size // 3)
        case "boolean" | "null":
            yield path, "a text in place of a flag", lambda size: "true" * (size // 4)
        case "array":
            yield from _lists(schema, defs, depth, path)
        case "object":
            yield path, "many members", _members
            yield path, "members of many levels", _nested
            yield path, "a text in place of an object", lambda size: "{" * size
            for inner, how, make in _of_members(schema, defs, depth, f"{path}."):
                name = inner[len(path) + 1 :].split(".")[0]
                yield inner, how, partial(_with, smallest(schema, defs), name, make)
        case _:
            yield from ((path, how, make) for how, make in _anything())


def _lists(schema: Schema, defs: Mapping[str, Schema], depth: int, path: str) -> Iterator[tuple[str, str, Make]]:
    item = smallest(schema.get("items", {}), defs)
    item_bytes = len(repr(item)) + 1
    yield path, "many items", lambda size: [item] * max(1, size // item_bytes)
    yield path, "many wrong items", lambda size: [{"wrong": 1}] * max(1, size // 12)
    yield path, "many numbers", lambda size: [1] * (size // 2)
    yield path, "many empty lists", lambda size: [[]] * (size // 3)
    yield path, "many empty texts", lambda size: [""] * (size // 3)
    yield path, "256 texts", lambda size: ["a " * (size // 520 + 1)] * 256
    yield path, "256 lists of numbers", lambda size: [[1] * (size // 520 + 1)] * 256
    for inner, how, make in _ways(schema.get("items", {}), defs, depth + 1, f"{path}.0"):
        yield inner, how, partial(_repeated, make, 1)
        yield inner, f"{how}, in each of 16", partial(_repeated, make, 16)


def _repeated(make: Make, times: int, size: int) -> list[Any]:
    return [make(size // times) for _ in range(times)]


def _texts() -> Iterator[tuple[str, Make]]:
    yield "letters", lambda size: "a" * size
    yield "words", lambda size: "the quick brown fox " * (size // 20 + 1)
    yield "blanks", lambda size: " \n" * (size // 2)
    yield "control tokens", lambda size: "<|im_end|>" * (size // 10 + 1)
    yield "beginnings of control tokens", lambda size: "<|im_en" * (size // 7 + 1)
    yield "brackets", lambda size: "[" * size
    yield "quotation marks", lambda size: '"' * (size // 2)
    yield "characters outside of the first plane", lambda size: "\U0001f680" * (size // 4)
    yield "controls", lambda size: "\x01" * (size // 6)
    yield "JSON", lambda size: '{"a": [1, {"b": "c"}]}' * (size // 30 + 1)
    yield "a call's beginning", lambda size: '<tool_call>\n{"name": "f", "arguments": {' * (size // 50 + 1)
    yield "thoughts", lambda size: "<think></think>" * (size // 15 + 1)


def _anything() -> Iterator[tuple[str, Make]]:
    yield from _texts()
    yield "many numbers", lambda size: [1] * (size // 2)
    yield "many empty lists", lambda size: [[]] * (size // 3)
    yield "many empty texts", lambda size: [""] * (size // 3)
    yield "256 texts", lambda size: ["a " * (size // 520 + 1)] * 256
    yield "256 lists of numbers", lambda size: [[1] * (size // 520 + 1)] * 256
    yield "many members", _members
    yield "members of many levels", _nested


def _members(size: int) -> dict[str, Any]:
    return {f"k{number}": 1 for number in range(max(1, size // 12))}


def _nested(size: int) -> Any:
    """Return an object in an object, as deep as bodies may be, and as often as fits."""
    value: Any = {}
    for _ in range(_LEVELS):
        value = {"a": value}
    return {f"n{number}": value for number in range(max(1, size // (6 * _LEVELS)))}


def smallest(schema: Schema, defs: Mapping[str, Schema], depth: int = 0) -> Any:
    """Return a small value that a schema allows, as far as its types say."""
    schema = _resolved(schema, defs)
    if depth > 2 * _DEEPEST:
        return None
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return smallest(options[0], defs, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "string":
            return "a" * schema.get("minLength", 1)
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return [smallest(schema.get("items", {}), defs, depth + 1)] * schema.get("minItems", 1)
        case "object":
            properties = schema.get("properties", {})
            return {name: smallest(properties[name], defs, depth + 1) for name in schema.get("required", ())}
    return "a"
