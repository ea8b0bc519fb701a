"""Errors that a command prints to its user instead of a traceback; its adapters' log lines are dropped."""

from __future__ import annotations

import errno
import logging
from typing import ClassVar

from spotwise.mesh.process.server_urls import without_passwords


def silence_logging() -> None:
    """Drop the adapters' log lines, for a command, whose errors are exceptions."""
    import structlog  # `--help` needs none, and it takes as long to import as all else of it

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class CommandError(Exception):
    """A command failed; the message gives the cause and the remedy. The command ends with `exit_status`."""

    exit_status: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(without_passwords(message))


class OptionError(CommandError):
    """An option is wrong; the message names it. The exit status is that of Typer's own checks."""

    exit_status: ClassVar[int] = 2


_REMEDIES = {
    errno.ENOSPC: "free some space, or name folders on another disk with SPOTWISE_HOME and SPOTWISE_CACHE",
    errno.EDQUOT: "free some space, or name folders on another disk with SPOTWISE_HOME and SPOTWISE_CACHE",
    errno.EROFS: "name folders that can be written with SPOTWISE_HOME and SPOTWISE_CACHE",
    errno.EACCES: "its owner is another user, or its mode forbids it; name other folders with SPOTWISE_HOME and SPOTWISE_CACHE",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.ENOMEM: "the machine has no memory left",
}


def os_error_line(error: OSError) -> str:
    """Return what the operating system refused, of which file, and what helps, on one line."""
    what = error.strerror or str(error) or type(error).__name__
    where = "" if error.filename is None else f"{error.filename}: "
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{where}{what}" + ("" if remedy is None else f"; {remedy}")
