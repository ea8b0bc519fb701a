"""Servers under measurement: a mesh of our own, and the peer, vLLM.

Law: a server lives as long as its `with` block and never longer than this process, however that ends; its name is its own, so
that nobody else's mesh is ever touched.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import psutil

from spotwise.cli.errors import CommandError, OptionError
from spotwise.cli.launch.run_folder import RunFolder, run_folder
from spotwise.cli.launch.run_state import read_state
from spotwise.cli.launch.service_logs import log_tail
from spotwise.cli.mesh_access import running_state
from spotwise.mesh.child_process import ChildProcess, identify, is_alive, send_signal, start_child
from spotwise.mesh.embedded import free_port

_VLLM_MODEL = "peer"
_START_S = 600.0
_GRACE_S = 30.0
_POLL_S = 0.2
#: The longest prompt and answer of any workload, with room.
_VLLM_CONTEXT_TOKENS = 4096
#: vLLM asks nobody and reports to nobody; its KV memory is enough for every workload.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}
#: A server under test keeps its queue as long as it takes; vLLM knows no limit either.
_PATIENT_ENV = {"SPOTWISE_MAX_QUEUE_S": "3600", "SPOTWISE_STALL_S": "3600"}
#: Nobody else knows its address, and vLLM's client sends no key.
_OPEN_ENV = {"SPOTWISE_API_KEYS": ""}

#: An idle mesh would rather serve in place, and what a hand-off costs could not be seen.
SPLIT_ALWAYS = {"SPOTWISE_BREAK_EVEN": "false"}

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is reached.

    Attributes:
        url: base of its API, without `/v1`.
        model: the name that it serves.
    """

    url: str
    model: str


@dataclass(frozen=True, slots=True)
class MeshEndpoint(Endpoint):
    """A mesh of this machine.

    Attributes:
        redis_url: its store, in which its members are found.
        name: by which other commands know it.
    """

    redis_url: str
    name: str

    @classmethod
    def of_running(cls, name: str) -> Self:
        """The mesh of that name.

        Raises:
            CommandError: it does not run.
        """
        state = running_state(name)
        return cls(state.options.url, state.options.model_name, state.redis_url, name)


def up_arguments(text: str) -> list[str]:
    """The arguments for `spotwise up` in the value of `--up-args`.

    Raises:
        OptionError: a quotation mark is open.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise OptionError(f"--up-args {text!r}: {error}") from error


@contextmanager
def running_mesh(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[MeshEndpoint]:
    """A mesh of this benchmark's own, started with `spotwise up ARGUMENTS`; `env` is set for all of its services.

    Raises:
        CommandError: it does not come up.
    """
    with _own_folder("mesh") as folder:
        argv = [sys.executable, "-P", "-m", "spotwise.cli", "up", "--name", folder.name, "--port", "0", *arguments]
        log_path = folder.path / "up.log"  # `up` empties the folder of its services' logs.
        child = start_child(argv, log_path=log_path, env={**_PATIENT_ENV, **os.environ, **_OPEN_ENV, **(env or {})})

        def ready() -> bool:
            state = read_state(folder.state_path)
            return state is not None and state.ready

        try:
            _wait_until(ready, child, "the mesh", log_path)
            yield MeshEndpoint.of_running(folder.name)
        finally:
            child.stop(_GRACE_S)


@contextmanager
def mesh_of(name: str | None, up_args: str, env: Mapping[str, str] | None = None) -> Iterator[MeshEndpoint]:
    """The mesh of that name, or one of this benchmark's own where there is none: started with these arguments.

    Raises:
        CommandError: it does not run, or does not come up.
        OptionError: as `up_arguments`.
    """
    if name is not None:
        yield MeshEndpoint.of_running(name)
        return
    with running_mesh(up_arguments(up_args), env) as endpoint:
        yield endpoint


@contextmanager
def running_vllm(vllm: Path, model_folder: Path, arguments: Sequence[str]) -> Iterator[Endpoint]:
    """vLLM, serving the model in bfloat16, with these arguments on top.

    Raises:
        CommandError: it does not come up.
    """
    with _own_folder("vllm") as folder:
        port = free_port()
        log_path = folder.log_path("vllm")
        argv = [
            *(str(vllm), "serve", str(model_folder), "--served-model-name", _VLLM_MODEL),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "bfloat16", "--max-model-len", str(_VLLM_CONTEXT_TOKENS)),
            *arguments,
        ]
        child = start_child(argv, log_path=log_path, env=vllm_environment())
        try:
            endpoint = Endpoint(f"http://127.0.0.1:{port}", _VLLM_MODEL)
            _wait_until(lambda: _is_healthy(endpoint.url), child, "vLLM", log_path)
            yield endpoint
        finally:
            _end_with_descendants(child)


def vllm_environment() -> dict[str, str]:
    """Variables of vLLM's processes; what the user set wins."""
    # By itself it leaves one core to its front end, which of two cores is half of what the mesh has.
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return {**_VLLM_ENV, "VLLM_CPU_OMP_THREADS_BIND": cores, **os.environ}


@contextmanager
def _own_folder(kind: str) -> Iterator[RunFolder]:
    """A run folder that nobody else has; its logs stay where the block failed."""
    folder = run_folder(f"bench-{kind}-{os.getpid()}-{next(_numbers)}")
    folder.logs_folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder.path)


def _wait_until(up: Callable[[], bool], child: ChildProcess, what: str, log_path: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while not up():
        if child.exit_code() is not None or time.monotonic() > deadline_s:
            end = "\n".join(log_tail(log_path))
            raise CommandError(f"{what} did not come up; the end of {log_path}:\n{end}")
        time.sleep(_POLL_S)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _end_with_descendants(child: ChildProcess) -> None:
    # The engine is a process of its own; one that outlived its server would take the next side's cores.
    try:
        found = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        found = []
    descendants = [identity for process in found if (identity := identify(process.pid)) is not None]
    child.stop(_GRACE_S)
    deadline_s = time.monotonic() + _GRACE_S
    while any(map(is_alive, descendants)):
        if time.monotonic() > deadline_s:
            for descendant in descendants:
                send_signal(descendant, signal.SIGKILL)
        time.sleep(_POLL_S)
