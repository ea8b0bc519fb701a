"""Folders on this machine: `$SPOTWISE_HOME/run/NAME/` has a mesh's state, lock and logs, `$SPOTWISE_CACHE` the models.

Defaults: `$XDG_STATE_HOME/spotwise`, else `~/.local/state/spotwise`; and `~/.cache/spotwise`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spotwise.cli.errors import CommandError, OptionError
from spotwise.files.user_folders import NoHomeError, expanded, home_folder, state_home
from spotwise.mesh.embedded.child_process import ProcessIdentity, identify, is_alive

DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of the mesh `name`, in the absolute folder `path`."""

    name: str
    path: Path

    @property
    def state_path(self) -> Path:
        """The supervisor's record while it runs (`run_state.py`)."""
        return self.path / "state.json"

    @property
    def mesh_secret_path(self) -> Path:
        """The secret that the processes of the mesh share (`mesh/security/secrets.py`)."""
        return self.path / "mesh.secret"

    @property
    def store_folder(self) -> Path:
        """What an embedded store keeps while the mesh runs."""
        return self.path / "store"

    @property
    def logs_folder(self) -> Path:
        """The folder of the logs, one for each process."""
        return self.path / "logs"

    @property
    def pulses_folder(self) -> Path:
        """The folder of the services' pulses (`mesh/process/pulse.py`)."""
        return self.path / "pulses"

    @property
    def supervisor_log_path(self) -> Path:
        """The log of a detached supervisor."""
        return self.logs_folder / "supervisor.log"

    def log_path(self, service_id: str) -> Path:
        """The log of one service."""
        return self.logs_folder / f"{service_id}.log"

    def pulse_path(self, service_id: str) -> Path:
        """The pulse of one service."""
        return self.pulses_folder / service_id

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the mesh's name for the block, by a lock that the kernel releases at any end of the process.

        Raises:
            CommandError: another process runs a mesh of this name, or the folder cannot be written.
        """
        try:
            self.logs_folder.mkdir(parents=True, exist_ok=True)
            # The folder holds passwords and clients' requests.
            self.path.chmod(0o700)
            self.logs_folder.chmod(0o700)
            opened = self._lock_path.open("ab", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from error
        with opened as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandError(
                    f"a mesh named {self.name!r} already runs here; stop it with `spotwise down{self.name_option}`, "
                    "or start another one beside it with --name OTHER and another --port"
                ) from None
            try:
                own = identify(os.getpid())
                lock.truncate(0)
                if own is not None:
                    lock.write(f"{own.pid} {own.start_ticks}".encode())
            except OSError as error:
                raise self._unwritable(error) from error
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    lock.truncate(0)

    def holder(self) -> ProcessIdentity | None:
        """The living process that holds the name; with it a mesh is found whose record is damaged."""
        try:
            pid, start_ticks = map(int, self._lock_path.read_bytes().split())
        except (FileNotFoundError, ValueError):
            return None
        holder = ProcessIdentity(pid, start_ticks)
        return holder if is_alive(holder) else None

    @property
    def _lock_path(self) -> Path:
        return self.path / "lock"

    def _unwritable(self, error: OSError) -> CommandError:
        return CommandError(
            f"{self.path} cannot be written: {error.strerror}; free some space, or set SPOTWISE_HOME to another folder"
        )

    @property
    def name_option(self) -> str:
        """The option that names this mesh on a command line; begins with a blank."""
        return "" if self.name == DEFAULT_NAME else f" --name {self.name}"


def run_folder(name: str) -> RunFolder:
    """The folder of a mesh, which need not exist; raises `OptionError` where `name` cannot be a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise OptionError(f"--name {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return RunFolder(name, _home_folder() / "run" / name)


def cache_folder() -> Path:
    """The folder of the models."""
    with _advising("SPOTWISE_CACHE"):
        given = os.environ.get("SPOTWISE_CACHE")
        return expanded(given) if given else home_folder() / ".cache" / "spotwise"


def _home_folder() -> Path:
    with _advising("SPOTWISE_HOME"):
        given = os.environ.get("SPOTWISE_HOME")
        return expanded(given) if given else state_home() / "spotwise"


@contextmanager
def _advising(variable: str) -> Iterator[None]:
    try:
        yield
    except NoHomeError as error:
        raise CommandError(f"{error}; set {variable} to an absolute path") from error
