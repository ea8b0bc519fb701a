"""The examples of the page on one's own fleet are what the command line prints."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.cli.command_line import command_line
from tests.unit.docs.docs_pages import ROOT, fenced

PAGE = (ROOT / "docs" / "what-if.md").read_text()
EXAMPLES = fenced(PAGE, "console")
#: The only figure that varies between runs.
WALL = "simulated in"


def lines(text: str) -> list[str]:
    """The lines that say something, without the figure that varies."""
    return [line.rstrip() for line in text.splitlines() if line.strip() and WALL not in line]


@pytest.mark.parametrize(
    "example",
    # A fleet that is bought takes most of a minute.
    [pytest.param(each, marks=[pytest.mark.long] if "--fleet" in each else []) for each in EXAMPLES],
    ids=range(len(EXAMPLES)),
)
def test_an_example_prints_what_the_page_shows(
    example: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    call, shown = example.split("\n", 1)
    prompt, _, *arguments = shlex.split(call)
    assert prompt == "$"
    ended = command_line(monkeypatch, capfd)(*arguments, "--jobs", "1")
    assert ended.status == 0, ended.stderr
    assert lines(ended.stdout) == lines(shown)
