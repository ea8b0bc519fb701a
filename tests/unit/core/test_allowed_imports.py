"""What core may import: a list, since import-linter knows only what is forbidden."""

from __future__ import annotations

import ast
from pathlib import Path

import spotwise.core

# Pure modules: no clock, no chance, no input or output, no threads.
STDLIB = {
    *("__future__", "abc", "array", "bisect", "collections", "collections.abc", "dataclasses", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "types", "typing"),
}
NUMERIC = {"numpy", "numpy.typing", "scipy.optimize", "scipy.sparse"}


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


def test_core_imports_only_pure_modules() -> None:
    """The list is exact: a module that core no longer imports leaves it."""
    outside = {
        name: path
        for path in Path(spotwise.core.__path__[0]).rglob("*.py")
        for name in imported(path)
        if not f"{name}.".startswith("spotwise.core.")
    }
    assert {name: str(path) for name, path in outside.items() if name not in STDLIB | NUMERIC} == {}
    assert outside.keys() == STDLIB | NUMERIC
