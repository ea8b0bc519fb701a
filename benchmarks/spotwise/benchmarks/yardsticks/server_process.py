"""A yardstick's server for the length of a `with` block."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
import psutil

from spotwise.cli.bench.servers import GRACE_S, POLL_S, ServerEndpoint, own_run_folder, wait_until
from spotwise.mesh.embedded.child_process import ChildProcess, identify, is_alive, send_signal, start_child
from spotwise.mesh.embedded.servers import free_port

#: The model's name at every yardstick.
SERVED_MODEL = "peer"


@contextmanager
def running_server(
    name: str, command: Callable[[int], Sequence[str]], env: Mapping[str, str]
) -> Iterator[ServerEndpoint]:
    """Run the command until the block ends.

    Args:
        name: the program's, for messages.
        command: returns the command line of a server on this port of the loopback interface.

    Raises:
        CommandError: the server does not answer `/health`; the message has the end of its log.
    """
    with own_run_folder(name.lower()) as folder:
        port = free_port()
        log_path = folder.log_path(name.lower())
        child = start_child(command(port), log_path=log_path, env=env)
        try:
            endpoint = ServerEndpoint(f"http://127.0.0.1:{port}", SERVED_MODEL)
            wait_until(lambda: _is_healthy(endpoint.url), child, name, log_path)
            yield endpoint
        finally:
            _end_with_descendants(child)


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _end_with_descendants(child: ChildProcess) -> None:
    # vLLM's engine is a process of its own; an orphan would take the next side's cores.
    try:
        found = psutil.Process(child.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        found = []
    descendants = [identity for process in found if (identity := identify(process.pid)) is not None]
    child.stop(GRACE_S)
    deadline_s = time.monotonic() + GRACE_S
    while any(map(is_alive, descendants)):
        if time.monotonic() > deadline_s:
            for descendant in descendants:
                send_signal(descendant, signal.SIGKILL)
        time.sleep(POLL_S)
