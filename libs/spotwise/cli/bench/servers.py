"""A mesh for one measurement: it lives for a `with` block, under a name of its own, so no other mesh is affected."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import RunFolder, run_folder
from spotwise.cli.launch.supervision.run_state import read_state
from spotwise.cli.launch.supervision.service_logs import log_tail
from spotwise.cli.mesh.running import running_state
from spotwise.mesh.embedded.child_process import ChildProcess, identify, start_child

_START_S = 600.0
GRACE_S = 30.0
POLL_S = 0.2
#: A server under measurement queues requests without a time limit, as vLLM does.
_PATIENT_ENV = {"SPOTWISE_MAX_QUEUE_S": "3600", "SPOTWISE_STALL_S": "3600"}
#: vLLM's client sends no key.
_OPEN_ENV = {"SPOTWISE_API_KEYS": ""}

#: An idle mesh serves in place, so hand-offs would not be measured.
SPLIT_ALWAYS = {"SPOTWISE_BREAK_EVEN": "false"}

#: Options of `spotwise up` that are the command's own.
_OWN_OPTIONS = {
    "--name": "the command names the mesh that it starts (for one that runs already: --name of the command itself)",
    "--detach": "the mesh ends with the command",
}

#: A file in a run folder that is kept.
_FAILED = "failed"

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """A server's name of its model, and its API's base URL without `/v1`."""

    url: str
    model: str


@dataclass(frozen=True, slots=True)
class MeshEndpoint(ServerEndpoint):
    """The address of a mesh on this machine; `name` as in `spotwise up --name`."""

    redis_url: str
    name: str

    @classmethod
    def of_running(cls, name: str) -> Self:
        """The running mesh of that name; raises `CommandError` where it does not run."""
        state = running_state(name)
        return cls(state.options.url, state.options.model_name, state.redis_url, name)


def up_arguments(text: str) -> list[str]:
    """Split the value of `--up-args` into arguments; raises `OptionError` for an open quotation mark, or an option that would
    take the mesh from its command.
    """
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"--up-args {text!r}: {error}") from error
    for option, why in _OWN_OPTIONS.items():
        if any(each == option or each.startswith(f"{option}=") for each in arguments):
            raise OptionError(f"--up-args {text!r}: leave out {option}; {why}")
    return arguments


@contextmanager
def running_mesh(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[MeshEndpoint]:
    """Run `spotwise up ARGUMENTS` for the block, `env` set for all services; raises `CommandError` on failure."""
    with own_run_folder("mesh") as folder:
        argv = [sys.executable, "-P", "-m", "spotwise.cli", "up", "--name", folder.name, "--port", "0", *arguments]
        log_path = folder.path / "up.log"  # `up` empties the folder of its services' logs.
        child = start_child(argv, log_path=log_path, env={**_PATIENT_ENV, **os.environ, **_OPEN_ENV, **(env or {})})

        def ready() -> bool:
            state = read_state(folder.state_path)
            return state is not None and state.ready

        try:
            wait_until(ready, child, "the mesh", log_path)
            yield MeshEndpoint.of_running(folder.name)
        finally:
            child.stop(GRACE_S)


@contextmanager
def mesh_of(name: str | None, up_args: str, env: Mapping[str, str] | None = None) -> Iterator[MeshEndpoint]:
    """The running mesh `name`; without a name, a new one, started with these arguments for the block.

    Raises:
        CommandError: it does not run, or does not start.
        OptionError: as `up_arguments`.
    """
    if name is not None:
        yield MeshEndpoint.of_running(name)
        return
    with running_mesh(up_arguments(up_args), env) as endpoint:
        yield endpoint


@contextmanager
def own_run_folder(kind: str) -> Iterator[RunFolder]:
    """A temporary run folder, kept with its logs where the block failed; it also removes those of killed benchmarks."""
    folder = run_folder(f"bench-{kind}-{os.getpid()}-{next(_numbers)}")
    _remove_left_folders(folder.path.parent)
    folder.logs_folder.mkdir(parents=True)
    try:
        yield folder
    except Exception:
        (folder.path / _FAILED).touch()
        raise
    except BaseException:  # interrupted
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    shutil.rmtree(folder.path)


def _remove_left_folders(parent: Path) -> None:
    """Remove the run folders of benchmarks that were killed; not those that failed, whose logs are kept."""
    for path in parent.glob("bench-*-*-*"):
        pid = path.name.split("-")[-2]
        if pid.isdecimal() and identify(int(pid)) is None and not (path / _FAILED).exists():
            shutil.rmtree(path, ignore_errors=True)


def wait_until(up: Callable[[], bool], child: ChildProcess, what: str, log_path: Path) -> None:
    """Wait until a server is up; raises `CommandError`, with the end of its log, where its process ended or took too long."""
    deadline_s = time.monotonic() + _START_S
    while not up():
        if child.exit_code() is not None or time.monotonic() > deadline_s:
            end = "\n".join(log_tail(log_path))
            raise CommandError(f"{what} did not come up; the end of {log_path}:\n{end}")
        time.sleep(POLL_S)
