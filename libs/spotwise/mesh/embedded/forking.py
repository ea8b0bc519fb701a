"""The program of a fork server (`fork_server.py`): imports modules once, and forks a process for each order.

Arguments: the number of an inherited socket, programs, `--`, and further modules. It has no threads, so that a fork copies all
that there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Import, then fork until the other side is gone; goes on as the program in each forked process."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    first_module = sys.argv.index("--")
    import_once(sys.argv[2:first_module], sys.argv[first_module + 1 :])
    channel.send(b"ready")
    order = _ordered(channel)
    if order is not None:
        channel.close()
        with os.fdopen(order, "rb") as file:
            given = json.load(file)
        become(**given)


def import_once(programs: Sequence[str], modules: Sequence[str]) -> None:
    """Import what forked processes will use: the modules that `python -m` runs for programs, and others."""
    gc.disable()  # imports make objects that stay
    for program in programs:
        _import(_file_of(program))
    for name in modules:
        _import(name)
    gc.freeze()


def _import(name: str) -> None:
    with contextlib.suppress(Exception):  # the program that needs it says what is wrong
        importlib.import_module(name)


def _file_of(program: str) -> str:
    """Return the module that `python -m program` runs."""
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(program)
        if spec is not None and spec.submodule_search_locations is not None:
            return f"{program}.__main__"
    return program


def _ordered(channel: socket.socket) -> int | None:
    """Fork for each order; return its file in the forked process, and `None` in the server at the end.

    The server does not read orders: its memory, and so that of later programs, has none of their environments' secrets.
    """
    while True:
        _, descriptors, _, _ = socket.recv_fds(channel, 16, 3)
        if not descriptors:
            return None
        order, log, may_go = descriptors
        try:
            pid = _fork(log)
            if pid == 0:
                if not os.read(may_go, 1):
                    os._exit(1)  # the order was given up
                os.close(may_go)
                return order
            reply = str(pid)
        except OSError as error:
            reply = error.strerror or str(error)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(reply.encode())


def _fork(log: int) -> int:
    """Fork a sibling of this process, in a session of its own; return its pid, and 0 in it.

    The process between them ends at once; the kernel then gives its child to the next subreaper, which is their parent.
    """
    parent = os.getppid()
    arrived, arrives = os.pipe()
    between = os.fork()
    if between == 0:
        own = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os._exit(error.errno or 1)
        if pid:
            os.write(arrives, f"{pid}\n".encode())
            os._exit(0)
        os.close(arrived)
        _settle(own, parent, log)
        os.write(arrives, b"here")
        os.close(arrives)
        return 0
    os.close(arrives)
    code = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
    with os.fdopen(arrived, "rb") as file:
        said = file.read().splitlines()
    if code:
        raise OSError(code, os.strerror(code))
    return int(said[0])


def _settle(between: int, parent: int, log: int) -> None:
    os.setsid()
    while os.getppid() == between:
        time.sleep(0.0005)
    # Only now: the end of the process between would have been taken for the parent's.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    os.close(nothing)
    os.close(log)


def become(module: str, env: Mapping[str, str], folder: str) -> None:
    """Be a program, as `python -P -m MODULE` would."""
    gc.enable()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv[1:] = []
    show_as(f"{sys.executable} -P -m {module}")
    sys.modules.pop(_file_of(module), None)  # it runs anew, as `__main__`
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def show_as(title: str) -> None:
    """Have /proc/PID/cmdline, and so `ps`, show the program (proc(5)): the memory of the server's arguments is its own."""
    _show(45, title.encode(), b" ")


def show_environment(env: Mapping[str, str]) -> None:
    """Have /proc/PID/environ show an environment, or its beginning, as far as the one that the server was given is long."""
    _show(47, b"\0".join(f"{name}={value}".encode() for name, value in env.items()), b"\0")


def _show(field: int, text: bytes, filler: bytes) -> None:
    """Write over memory whose start and end are fields of /proc/self/stat, counted from the one behind the program's name."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[field]), int(fields[field + 1])
        shown = text[: end - start - 2] + b"\0"
        ctypes.memmove(start, shown.ljust(end - start, filler), end - start)


if __name__ == "__main__":
    main()
