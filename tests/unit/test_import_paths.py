"""One import path a name, and one meaning a class name."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("libs", "services", "benchmarks", "studies")


def modules(root: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the dotted name and syntax tree of each module in this folder, generated code apart."""
    for path in sorted((ROOT / root).rglob("*.py")):
        if not {"v1", "_build"} & {*path.parts}:
            name = ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def sources() -> list[tuple[str, ast.Module]]:
    """All modules of the sources; read by a test, not by each process that collects tests."""
    return [each for root in SOURCES for each in modules(root)]


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define; what they import is defined elsewhere."""
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=then, orelse=otherwise):
                yield from bound([*then, *otherwise])


def test_names_are_imported_from_where_they_are_defined() -> None:
    """Sources and tests import a name from the module that defines it, so that a move changes one place."""
    defined = {name: set(bound(module.body)) for name, module in sources()}
    packages = {name.rpartition(".")[0] for name in defined}
    wrong = [
        f"{importer}: {node.module}.{alias.name}"
        for importer, module in (*sources(), *modules("tests"))
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module in defined
        for alias in node.names
        if alias.name not in defined[node.module] and f"{node.module}.{alias.name}" not in defined.keys() | packages
    ]
    assert wrong == []


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for name, module in sources():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
