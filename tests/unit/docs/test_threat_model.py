"""The threat model names tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.unit.docs.docs_pages import ROOT

PAGE = ROOT / "docs" / "threat-model.md"
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", PAGE.read_text())))


@pytest.mark.parametrize("named", NAMED)
def test_every_test_that_it_names_exists(named: str) -> None:
    """A control whose test was renamed or removed would be shown by nothing."""
    path, _, function = named.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in tests if function else any(name.startswith("test_") for name in tests)


def test_each_control_has_a_test() -> None:
    """Every row of its tables of controls ends with the name of a test."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| to ", "| as "))]
    assert len(rows) > 20
    assert not [row for row in rows if "`tests/" not in row.rsplit("|", 2)[1]]
