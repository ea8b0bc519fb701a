"""docs/newcomer.md: its changes take few files, which have what the page says."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.docs_pages import ROOT, quoted

PAGE = (ROOT / "docs" / "newcomer.md").read_text()
#: Each list of steps, in the page's order, and each of its steps.
CHANGES = [
    re.findall(r"^\d\. ((?:.+\n)(?:   .+\n)*)", part, re.MULTILINE)
    for part in re.split(r"^(?=1\. )", PAGE, flags=re.MULTILINE)
][1:]
STEPS = [step for change in CHANGES for step in change]
MOST_FILES, MOST_WORDS = 4, 500


def test_the_page_is_short_and_so_are_its_changes() -> None:
    """Five lists of at most four files."""
    assert len(PAGE.split()) <= MOST_WORDS
    assert [len(change) for change in CHANGES] == [4, 2, 2, 3, 3]
    assert max(map(len, CHANGES)) <= MOST_FILES


@pytest.mark.parametrize("step", STEPS, ids=lambda step: quoted(step)[0])
def test_each_file_has_the_names_of_its_step(step: str) -> None:
    """A step begins with its file, or the folder of a new one; the names beside it are there."""
    place, *names = quoted(step)
    path = ROOT / place
    sources = [path] if path.is_file() else [*path.rglob("*.py")]
    text = "\n".join(source.read_text() for source in sources) + " ".join(source.name for source in sources)
    for name in names:
        is_shell = " " in name
        assert is_shell or re.search(rf"\b{re.escape(name)}\b", text), (
            f"{place} has no {name}: correct docs/newcomer.md"
        )
