"""The command line as a user has it, inside the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spotwise.cli import __main__ as program


@dataclass(frozen=True)
class Ended:
    status: int
    stdout: str
    stderr: str


#: Runs `spotwise` with these arguments.
CommandLine = Callable[..., Ended]


@dataclass(frozen=True)
class Report:
    """What a command that succeeded printed, in one line, and the document that it wrote."""

    text: str
    document: Any


#: Runs a command, given as one text in which `@name` is a file of the test's folder, with `--json`; it succeeds.
ReportOf = Callable[[str], Report]
#: Runs a command, given likewise, that is refused with status 2; returns its error, in one line.
RefusalOf = Callable[[str], str]


def command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line; anything but an exit, a traceback's cause for instance, is raised."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["spotwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            program.main()
        captured = capfd.readouterr()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Ended(code or 0, captured.out, captured.err)

    return run
