"""What a command tells its user instead of a traceback."""

from __future__ import annotations

from typing import ClassVar

from spotwise.mesh.redaction import without_passwords


class CommandError(Exception):
    """A command cannot do what was asked; the message says why and what to do.

    Attributes:
        exit_status: with which the command ends.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class OptionError(CommandError):
    """An option is wrong, whatever runs here; the message names it. The same exit status as Typer's own checks."""

    exit_status: ClassVar[int] = 2
