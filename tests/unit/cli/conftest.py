"""What tests of the command line share."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from tests.unit.cli.command_line import CommandLine, RefusalOf, Report, ReportOf, command_line


@pytest.fixture
def spotwise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """The command line, with a SPOTWISE_HOME in which no mesh runs and a terminal wide enough for its messages."""
    monkeypatch.setenv("SPOTWISE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return command_line(monkeypatch, capfd)


def words_of(command: str, folder: Path) -> list[str]:
    return [re.sub("^@", f"{folder}/", word) for word in command.split()]


@pytest.fixture
def report_of(spotwise: CommandLine, tmp_path: Path) -> ReportOf:
    def report(command: str) -> Report:
        file = tmp_path / "report.json"
        ended = spotwise(*words_of(command, tmp_path), "--json", str(file))
        assert ended.status == 0, ended.stderr
        return Report(" ".join(ended.stdout.split()), orjson.loads(file.read_bytes()))

    return report


@pytest.fixture
def refusal_of(spotwise: CommandLine, tmp_path: Path) -> RefusalOf:
    def refusal(command: str) -> str:
        ended = spotwise(*words_of(command, tmp_path))
        assert ended.status == 2, ended.stderr
        assert ended.stderr.startswith("Usage: ") or len(ended.stderr.splitlines()) == 1, ended.stderr
        return " ".join(ended.stderr.split())

    return refusal
