"""The program of `InstanceForks`: imports the modules of local instances once, and forks a launcher for each order.

Arguments: the number of an inherited socket, then programs and modules as in `spotwise.mesh.embedded.forking`. A launcher runs
the very code that is executed otherwise (`spotwise.cloud.local_processes`), so that the processes of a machine have the same
parents, sessions, environments and signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from spotwise.cloud.local_processes import LAUNCHER, MARK
from spotwise.mesh.embedded.forking import become, import_once, show_as, show_environment


class _ProgramBeganError(BaseException):
    """Leaves the launcher's code in the process that is to be the program."""

    def __init__(self, module: str, env: dict[str, str]) -> None:
        self.module = module
        self.env = env


def main() -> None:
    """Import, then launch machines until the other side is gone; goes on as the program in a machine's process."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    first_module = sys.argv.index("--")
    import_once(sys.argv[2:first_module], sys.argv[first_module + 1 :])
    channel.send(b"ready")
    while True:
        _, descriptors, _, _ = socket.recv_fds(channel, 16, 3)
        if not descriptors:
            return
        wrong = os.memfd_create("wrong")
        try:
            pid = os.fork()
        except OSError as error:
            channel.send(f"1the system refuses to fork: {error.strerror}".encode())
        else:
            if pid == 0:
                channel.close()
                order, output, lock = descriptors
                _launch(order, output, lock, wrong)
            for descriptor in descriptors:  # before the wait: the order's lock is for the launcher to hold
                os.close(descriptor)
            descriptors = []
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = os.pread(wrong, 4096, 0)
            channel.send(b"%d" % bool(code) + said)
        for descriptor in (*descriptors, wrong):
            os.close(descriptor)


def _launch(order: int, output: int, lock: int, wrong: int) -> NoReturn:
    """Be the launcher, and in forks of it the machine's guard and its program."""
    with os.fdopen(order, "rb") as file:
        given = json.load(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (output, 1), (wrong, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["env"])
    show_environment({MARK: os.environ[MARK], **os.environ})  # the mark in any case
    path, _, *arguments = given["arguments"]
    show_as(f"guard of {path}")
    sys.argv = ["-c", path, str(lock), *arguments]
    try:
        exec(compile(LAUNCHER, "launcher", "exec"), {"become": _begin})
    except _ProgramBeganError as begun:
        program = begun
    except SystemExit as ended:  # the launcher's own end
        os.write(2, str(ended.code or "").encode())
        os._exit(bool(ended.code))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    else:
        os._exit(0)  # the guard's
    become(program.module, {**os.environ, **program.env}, str(Path.cwd()))
    sys.exit()


def _begin(argv: Sequence[str]) -> None:
    """Be the program: in this process if it is one of Python's modules, else by exec, which raises `OSError`."""
    if (program := program_of(argv)) is None:
        os.execvpe(argv[0], [*argv], os.environ)
    for descriptor in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with contextlib.suppress(OSError):  # that of the list itself is closed already
                os.close(descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as at Python's start
    raise _ProgramBeganError(*program)


def program_of(argv: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """Return the module and the variables of `env NAME=VALUE... python -P -m MODULE`; `None` for any other command."""
    words = list(argv)
    env: dict[str, str] = {}
    if words[:1] == ["env"]:
        del words[0]
        while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            env[name] = value
    if len(words) != 4 or words[:3] != [sys.executable, "-P", "-m"]:
        return None
    return words[3], env


if __name__ == "__main__":
    main()
