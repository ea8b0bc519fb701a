"""No table of the architecture or the glossary has a row twice; README says of interrupted requests what tests show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.docs.docs_pages import README, ROOT, page_name, section

PAGES = [ROOT / "docs" / name for name in ("architecture.md", "glossary.md")]
#: Beginnings of known limits, and the tests that show how far each goes.
LIMITS = {
    "A request without a stream ends with the gateway that has it; streams go on": "tests/live/test_gateway_loss.py",
    "Interrupted requests give the same tokens on CPU workers with native kernels": "tests/live/test_faults.py",
}


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


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_row_is_there_twice(page: Path) -> None:
    """A row is of what its first cell names, or of that at a time (`when`)."""
    found = list(tables(page.read_text()))
    assert found
    for head, rows in found:
        width = 2 if "when" in head[:2] else 1
        counts = Counter(tuple(row[:width]) for row in rows)
        assert [key for key, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("limit", LIMITS)
def test_a_known_limit_is_said_and_shown(limit: str) -> None:
    said = " ".join(section(README.read_text(), "Known limits").split())
    assert f"- {limit}" in said
    assert (ROOT / LIMITS[limit]).is_file()
    assert "requests of a gateway that dies are lost" not in said
