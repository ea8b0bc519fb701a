"""The command line as a user has it, inside the test's process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spotwise.cli import __main__ as program


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command."""

    status: int
    stdout: str
    stderr: str


#: Runs `spotwise` with these arguments.
CommandLine = Callable[..., Ended]


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
