"""Errors that a command prints to its user instead of a traceback."""

from __future__ import annotations

from typing import ClassVar

from spotwise.mesh.redaction import without_passwords


class CommandError(Exception):
    """A command failed; the message gives the cause and the remedy. The command ends with `exit_status`."""

    exit_status: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class OptionError(CommandError):
    """An option is wrong; the message names it. The exit status is that of Typer's own checks."""

    exit_status: ClassVar[int] = 2
