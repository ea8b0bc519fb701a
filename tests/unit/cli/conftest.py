"""What tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.command_line import CommandLine, command_line


@pytest.fixture
def spotwise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line, with a SPOTWISE_HOME in which no mesh runs and a terminal wide enough for its messages."""
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return command_line(monkeypatch, capfd)
