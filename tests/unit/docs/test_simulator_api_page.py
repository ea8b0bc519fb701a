"""docs/simulator-api.md: its program prints what the page shows."""

from __future__ import annotations

import inspect

import pytest

from spotwise.simulator import api
from tests.unit.docs.docs_pages import ROOT, fenced

PAGE = (ROOT / "docs" / "simulator-api.md").read_text()


def test_the_program_prints_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (program,) = fenced(PAGE, "python")
    (shown,) = fenced(PAGE, "text")
    exec(compile(program, "docs/simulator-api.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == shown


def test_the_page_names_every_function() -> None:
    functions = [
        name for name, value in inspect.getmembers(api, inspect.isfunction) if value.__module__ == api.__name__
    ]
    assert len(functions) == 5
    for name in functions:
        assert f"`{name}`" in PAGE
