"""The user's folders: home, and cache and state after the XDG Base Directory Specification. A process may have none of them.

A user id without an entry in passwd and without HOME, as containers run them, has no home. A relative HOME would be another
folder in each process; a relative XDG variable is ignored, as the specification asks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class NoHomeError(Exception):
    """A path needs the home folder of a user who has none; the message says why."""


def home_folder() -> Path:
    """Return the user's home; raises `NoHomeError`."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise NoHomeError(f"user {os.getuid()} has no home folder: HOME is not set and passwd has no entry") from error
    if not home.is_absolute():
        raise NoHomeError(f"HOME is {str(home)!r}, which is no absolute path")
    return home


def state_home() -> Path:
    """Return the folder of state that outlives a process, `~/.local/state` by default; raises `NoHomeError`."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    """Return the folder of what can be made again, `~/.cache` by default; raises `NoHomeError`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def build_folders(sources: Path, name: str) -> tuple[Path, ...]:
    """Return where what is built may lie: beside its sources, or in the user's cache folder, if there is one."""
    try:
        return sources / "_build", cache_home() / "spotwise" / name
    except NoHomeError:
        return (sources / "_build",)


def first_writable(folders: Iterable[Path]) -> Path | None:
    """Return the first of these folders, made where it is missing, that can be written; `None`: none of them can."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def expanded(given: str | Path) -> Path:
    """Return an absolute path in which `~` and `~user` are folders; raises `NoHomeError` where that one has none."""
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise NoHomeError(f"{given}: {error}".rstrip(".")) from error


def _xdg(variable: str, below_home: str) -> Path:
    given = Path(os.environ.get(variable, ""))
    return given if given.is_absolute() else home_folder() / below_home
