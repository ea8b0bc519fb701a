"""Where a mesh of this machine keeps its state and logs, and where models are kept.

`$SPOTWISE_HOME/run/NAME/` holds one mesh: `state.json`, `lock` and `logs/`. Without `SPOTWISE_HOME` it
is `$XDG_STATE_HOME/spotwise`, by default `~/.local/state/spotwise`. Models are kept in `$SPOTWISE_CACHE`, by default
`~/.cache/spotwise`.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotwise.cli.errors import CommandError, OptionError

DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one mesh.

    Attributes:
        name: of the mesh.
        path: its folder, absolute.
    """

    name: str
    path: Path

    @property
    def state_path(self) -> Path:
        """Written by the supervisor while it runs (`run_state.py`)."""
        return self.path / "state.json"

    @property
    def logs_folder(self) -> Path:
        """One log for each process."""
        return self.path / "logs"

    @property
    def supervisor_log_path(self) -> Path:
        """The log of a detached supervisor."""
        return self.logs_folder / "supervisor.log"

    def log_path(self, service_id: str) -> Path:
        """The log of one service."""
        return self.logs_folder / f"{service_id}.log"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the mesh's name for the length of a block; the kernel lets go of it when the process ends, however it ends.

        Raises:
            CommandError: another process runs a mesh of this name, or the folder cannot be written.
        """
        try:
            self.logs_folder.mkdir(parents=True, exist_ok=True)
            # Passwords and what clients sent are in there.
            self.path.chmod(0o700)
            self.logs_folder.chmod(0o700)
            opened = (self.path / "lock").open("ab")
        except OSError as error:
            raise CommandError(
                f"{self.path} cannot be written: {error.strerror}; set SPOTWISE_HOME to another folder"
            ) from error
        with opened as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"a mesh named {self.name!r} already runs here; stop it with `spotwise down{self.name_option}`, "
                    "or start another one beside it with --name OTHER and another --port"
                ) from None
            yield

    @property
    def name_option(self) -> str:
        """What to add to a command line to mean this mesh; begins with a blank."""
        return "" if self.name == DEFAULT_NAME else f" --name {self.name}"


def run_folder(name: str) -> RunFolder:
    """The folder of a mesh, which need not exist.

    Raises:
        OptionError: `name` cannot be a folder's name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise OptionError(f"--name {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return RunFolder(name, _home_folder() / "run" / name)


def cache_folder() -> Path:
    """Where models are kept between runs."""
    given = os.environ.get("SPOTWISE_CACHE")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "spotwise"


def _home_folder() -> Path:
    given = os.environ.get("SPOTWISE_HOME")
    if given:
        return Path(given).expanduser().absolute()
    state_home = os.environ.get("XDG_STATE_HOME")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "spotwise"
