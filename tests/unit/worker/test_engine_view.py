"""A process's answers for each of its workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spotwise.worker.runtime import RuntimeView


def runtime(name: str) -> Any:
    """A runtime that answers with its name."""
    return SimpleNamespace(
        description=lambda: f"description of {name}", times=SimpleNamespace(since=lambda n: (name, n))
    )


def test_each_member_answers_for_itself() -> None:
    """One that has not begun, or has left, does not; without an id it is the first."""
    view = RuntimeView()
    assert view.describe("a") is None
    assert view.describe("") is None
    view.add("a", runtime("a"))
    view.add("b", runtime("b"))
    assert view.describe("b") == "description of b"
    assert view.describe("") == "description of a"
    assert view.iterations("b", 7) == ("b", 7)
    view.remove("a")
    view.remove("a")
    assert view.describe("a") is view.iterations("a", 0) is None
    assert view.describe("") == "description of b"
