"""The project's pages, as text to check."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
API = ROOT / "docs" / "api.md"
OBSERVE = ROOT / "docs" / "observe.md"
DEPLOY = ROOT / "docs" / "deploy.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "services").rglob("README.md"),
    ]
)


def page_name(page: Path) -> str:
    """A page's path in the project, for test ids and messages."""
    return str(page.relative_to(ROOT))


def fenced(text: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [body for language, body in blocks if language in languages]


def section(text: str, heading: str) -> str:
    """A section's text, without its sub-sections' parents."""
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section {heading!r}"
    return found[1]


def table(text: str) -> list[list[str]]:
    """The cells of a section's first table, row by row, without its head."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| ---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def subsections(text: str) -> dict[str, str]:
    """The texts of a section's sub-sections by their headings."""
    _, *parts = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def quoted(cell: str) -> list[str]:
    """The texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def require_rows(listed: set[str], in_code: set[str], where: str) -> None:
    """Fail, naming page and rows, unless a table lists what the code has."""
    missing, stale = sorted(in_code - listed), sorted(listed - in_code)
    assert not missing, f"{where}: add a row for {', '.join(missing)}"
    assert not stale, f"{where}: remove {', '.join(stale)}, which the code does not have"
