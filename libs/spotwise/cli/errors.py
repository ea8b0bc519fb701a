"""What a command tells its user instead of a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was asked; the message says why and what to do. Exit status 1."""
