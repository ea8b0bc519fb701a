"""Writes out the methods of dataclasses.

`dataclass` makes methods when a module is imported, too late for a compiler: a compiled class would be made and compared by
interpreted code, at a twelfth of the speed. Here `__init__`, `__eq__`, `__hash__` and the like are written into the source
first, as `dataclass` would make them. Two things differ: frozen classes are not frozen any more, since the type checker has
seen to it (docs/adr/0050), and an object with a NaN is not equal to itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

_HELPERS = """
from mypy_extensions import mypyc_attr as _mypyc_attr
from typing import Any as _Any, ClassVar as _ClassVar
from spotwise.simulator.compiled.native_class import (
    field as _field, fields_of as _fields_of, rebuilt as _rebuilt, schema_of as _schema_of
)
"""
_ORDER = {"__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a dataclass, as its source has it.

    Attributes:
        annotation: `None` of one that is inherited from another module, whose names this one may lack.
        default, factory: expressions, or `None`.
    """

    name: str
    annotation: str | None
    default: str | None
    factory: str | None
    is_argument: bool
    by_keyword: bool
    is_compared: bool
    is_shown: bool

    @property
    def argument(self) -> str:
        """Its part of the signature of `__init__`."""
        if self.factory is not None:
            return f"{self.name}: '{self._type} | None' = None"
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.name}: {self._type}{default}"

    @property
    def assignment(self) -> str:
        """Its line of `__init__`."""
        declared = f"self.{self.name}" if self.annotation is None else f"self.{self.name}: {self.annotation}"
        if not self.is_argument:
            return declared
        value = self.name
        if self.factory is not None:
            value = f"({self.factory})() if {self.name} is None else {self.name}"
        return f"{declared} = {value}"

    @property
    def description(self) -> str:
        """What `fields_of` is told of it."""
        options = [f"kw_only={self.by_keyword}", f"init={self.is_argument}"]
        if self.factory is not None:
            options.append(f"default_factory={self.factory}")
        elif self.default is not None:
            options.append(f"default={self.default}")
        return f"({self.name!r}, {self._type!r}, _field({', '.join(options)}))"

    @property
    def _type(self) -> str:
        return self.annotation or "_Any"


@dataclass(frozen=True, slots=True)
class Dataclass:
    """A dataclass in its source."""

    module: str
    node: ast.ClassDef
    decorator: ast.expr
    own_fields: tuple[Field, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @property
    def options(self) -> Mapping[str, bool]:
        """What the decorator is told."""
        if isinstance(self.decorator, ast.Call):
            return {each.arg or "": ast.literal_eval(each.value) for each in self.decorator.keywords}
        return {"frozen": ast.unparse(self.decorator) == "value"}

    @property
    def written(self) -> frozenset[str]:
        """Methods that the source has."""
        return frozenset(each.name for each in self.node.body if isinstance(each, ast.FunctionDef))


def explicit(sources: Mapping[str, str]) -> dict[str, str]:
    """Return sources by module with all methods written out; a dataclass may inherit from one of another module."""
    trees = {module: ast.parse(source) for module, source in sources.items()}
    found = {each.name: each for module, tree in trees.items() for each in _dataclasses(module, tree)}
    for each in found.values():
        _write_out(each, _all_fields(each, found))
    for tree in trees.values():
        _leave_interpreted(tree)
    return {module: _with_helpers(tree) for module, tree in trees.items()}


def _dataclasses(module: str, tree: ast.Module) -> Iterator[Dataclass]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                name = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(name, ast.Name) and name.id in ("dataclass", "value"):
                    yield Dataclass(module, node, decorator, tuple(_own_fields(node)))


def _own_fields(node: ast.ClassDef) -> Iterator[Field]:
    for statement in node.body:
        if _is_field(statement):
            assert isinstance(statement, ast.AnnAssign)
            assert isinstance(statement.target, ast.Name)
            default, options = statement.value, dict[str, ast.expr]()
            if isinstance(default, ast.Call) and ast.unparse(default.func) == "field":
                options = {each.arg or "": each.value for each in default.keywords}
                default = options.get("default")
            factory = options.get("default_factory")
            yield Field(
                statement.target.id,
                ast.unparse(statement.annotation),
                None if default is None else ast.unparse(default),
                None if factory is None else ast.unparse(factory),
                is_argument=_is_true(options.get("init"), usual=True),
                by_keyword=_is_true(options.get("kw_only"), usual=False),
                is_compared=_is_true(options.get("compare"), usual=True),
                is_shown=_is_true(options.get("repr"), usual=True),
            )


def _is_field(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation)


def _is_true(option: ast.expr | None, *, usual: bool) -> bool:
    return usual if option is None else bool(ast.literal_eval(option))


def _all_fields(of: Dataclass, found: Mapping[str, Dataclass]) -> tuple[Field, ...]:
    fields: dict[str, Field] = {}
    for base in of.node.bases:
        inherited = found.get(ast.unparse(base).rpartition(".")[2])
        if inherited is not None:
            is_near = inherited.module == of.module
            for each in _all_fields(inherited, found):
                fields[each.name] = each if is_near else replace(each, annotation=None)
    return tuple((fields | {each.name: each for each in of.own_fields}).values())


def _write_out(of: Dataclass, fields: tuple[Field, ...]) -> None:
    node = of.node
    node.decorator_list.remove(of.decorator)
    kept = [each for each in node.body if not _is_field(each)]
    has_docstring = bool(kept) and isinstance(kept[0], ast.Expr)
    made = ast.parse("\n".join(_methods(of, fields))).body
    node.body = [*kept[:has_docstring], *made, *kept[has_docstring:]]


def _methods(of: Dataclass, fields: tuple[Field, ...]) -> Iterator[str]:
    """Yield what stands in place of the decorator."""
    described = "".join(f"{each.description}, " for each in fields)
    yield f"__dataclass_fields__: '_ClassVar[_Any]' = _fields_of({of.name!r}, ({described}))"
    arguments = [each for each in fields if each.is_argument]
    by_place = [each for each in arguments if not each.by_keyword]
    yield f"__match_args__: '_ClassVar[_Any]' = {tuple(each.name for each in by_place)!r}"
    yield from _init(of, fields, arguments)
    if of.options.get("eq", True):
        yield from _comparisons(of, [each.name for each in fields if each.is_compared])
    if "__repr__" not in of.written:
        shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in fields if each.is_shown)
        yield f"def __repr__(self) -> str:\n    return f'{of.name}({shown})'"
    values = ", ".join(f"{each.name!r}: self.{each.name}" for each in arguments)
    yield f"def __reduce__(self) -> '_Any':\n    return _rebuilt, ({of.name}, {{{values}}})"
    yield "@classmethod"
    yield "def __get_pydantic_core_schema__(cls, source: '_Any', handler: '_Any') -> '_Any':"
    yield "    return _schema_of(cls, handler)"


def _init(of: Dataclass, fields: Iterable[Field], arguments: list[Field]) -> Iterator[str]:
    by_place = [each.argument for each in arguments if not each.by_keyword]
    by_keyword = [each.argument for each in arguments if each.by_keyword]
    signature = ["self", *by_place, *(["*", *by_keyword] if by_keyword else [])]
    yield f"def __init__({', '.join(signature)}) -> None:"
    lines = [each.assignment for each in fields]
    if "__post_init__" in of.written:
        lines.append("self.__post_init__()")
    yield from (f"    {line}" for line in lines or ["pass"])


def _comparisons(of: Dataclass, compared: list[str]) -> Iterator[str]:
    own, others = (f"({''.join(f'{of_whom}.{name}, ' for name in compared)})" for of_whom in ("self", "other"))
    if "__eq__" not in of.written:
        yield "def __eq__(self, other: object) -> bool:"
        yield f"    if not isinstance(other, {of.name}) or type(other) is not type(self):"
        yield "        return NotImplemented"
        yield f"    return {' and '.join(f'self.{name} == other.{name}' for name in compared) or 'True'}"
    if (of.options.get("frozen") or of.options.get("unsafe_hash")) and "__hash__" not in of.written:
        yield f"def __hash__(self) -> int:\n    return hash({own})"
    if of.options.get("order"):
        for method, sign in _ORDER.items():
            yield f"def {method}(self, other: object) -> bool:"
            yield f"    if not isinstance(other, {of.name}) or type(other) is not type(self):"
            yield "        return NotImplemented"
            yield f"    return {own} {sign} {others}"


def _leave_interpreted(tree: ast.Module) -> None:
    """Mark the classes that mypyc does not compile, or whose bases it takes for more than they are: errors and protocols."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            if any(base == "Protocol" or base.endswith(("Error", "Exception")) for base in bases):
                node.decorator_list.append(ast.parse("_mypyc_attr(native_class=False)", mode="eval").body)


def _with_helpers(tree: ast.Module) -> str:
    """Return the source of a module, with what its written-out methods import behind its docstring and its future."""
    behind = 0
    for number, statement in enumerate(tree.body):
        is_docstring = not number and isinstance(statement, ast.Expr)
        if is_docstring or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            behind = number + 1
    tree.body[behind:behind] = ast.parse(_HELPERS).body
    return ast.unparse(tree) + "\n"
