"""No table of a page has a row twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs.docs_pages import README, ROOT, page_name

PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
#: Heads of tables whose rows need more cells than the first to be told apart: several cases of a subject, or axes of a grid.
KEYS = (
    ("status", "`code`"),
    ("X", "when"),
    ("who", "listens on"),
    ("member", "what"),
    ("budget", "load"),
    ("trace", "$", "rate /s"),
    ("trace", "machines that stay"),
)


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Heads and rows of a page's tables."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| ---"):
            rows = []
            for row in lines[number + 1 :]:
                if not row.startswith("|"):
                    break
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
            yield [cell.strip() for cell in lines[number - 1].strip("|").split("|")], rows


def twice(head: list[str], rows: list[list[str]]) -> list[tuple[str, ...]]:
    """The keys that several rows have. A row without a first cell is one more of the subject above, by its second cell."""
    width = max((len(key) for key in KEYS if tuple(head[: len(key)]) == key), default=1)
    keys: list[tuple[str, ...]] = []
    subject = ""
    for row in rows:
        subject = row[0] or subject
        keys.append((subject, *row[1 : width if row[0] else max(width, 2)]))
    return [key for key, count in Counter(keys).items() if count > 1]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_row_is_there_twice(page: Path) -> None:
    """A row is of what its first cell names, or of a case of it."""
    found = list(tables(page.read_text()))
    assert len(found) == page.read_text().count("\n| ---")
    assert [(head[0], keys) for head, rows in found if (keys := twice(head, rows))] == []


def test_rows_that_are_there_twice_are_found() -> None:
    head = ["event", "means"]
    assert twice(head, [["a", "x"], ["b", "x"], ["a", "y"]]) == [("a",)]
    assert twice(head, [["a", "x"], ["", "y"], ["", "y"], ["b", "y"]]) == [("a", "y")]
    assert twice(["member", "what"], [["all", "x"], ["all", "y"], ["all", "x"]]) == [("all", "x")]
