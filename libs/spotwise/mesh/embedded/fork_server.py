"""Programs that start in a fraction of a second: forked from a process that has imported their modules.

The server is a program of its own, without threads (`forking.py`). What it forks becomes a child of the process that ordered
it, which is made a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), and lives on when the server ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotwise.mesh.embedded.child_process import ChildProcess, open_log, start_child

_PROGRAM = "spotwise.mesh.embedded.forking"
_PR_SET_CHILD_SUBREAPER = 36
#: A fork of a large process on a busy machine takes tenths of a second.
_REPLY_S = 10.0
#: One thread: a process with several cannot be forked safely. CUDA is looked for without being initialised.
ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class ForkServer:
    """Forks programs from a process that has imported their modules.

    Args:
        programs: what `start` will be given.
        modules: what else the server imports. Anything that cannot be imported is left to the program that needs it.
        log_path: receives what the imports print.
        env: the server's whole environment, which its programs' /proc/PID/environ shows: it must hold no secrets.
    """

    def __init__(self, programs: Sequence[str], modules: Sequence[str], log_path: Path, env: Mapping[str, str]) -> None:
        self._programs = programs
        self._modules = modules
        self._log_path = log_path
        self._env = {**env, **ENV}
        self._is_ready = False
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._begin()

    @property
    def pid(self) -> int:
        """The server's own pid."""
        return self._server.pid

    def is_settled(self) -> bool:
        """Whether it has imported its modules, or ended: a start does not wait for it then."""
        if not self._is_ready and select.select([self._channel], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                self._is_ready = bool(self._channel.recv(16))
        return self._is_ready or self._server.exit_code() is not None

    def start(self, module: str, *, log_path: Path, env: Mapping[str, str]) -> ChildProcess:
        """Start `python -P -m module`, which dies with this process.

        Args:
            log_path: receives stdout and stderr, as with `start_child`.
            env: the program's whole environment.

        Raises:
            OSError: the server has ended, and begins again; or the system refuses the fork.
        """
        if not self._is_ready or self._server.exit_code() is not None:
            self._begin_again()
            raise OSError("the fork server has ended")
        order = json.dumps({"module": module, "env": dict(env), "folder": str(Path.cwd())})
        try:
            return ChildProcess(AdoptedProcess(self._forked(order.encode(), log_path)))
        except OSError:
            self._begin_again()
            raise

    def close(self) -> None:
        """End the server; what it forked goes on."""
        self._channel.close()
        self._server.kill()

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno()), *self._programs, "--", *self._modules]
            self._server = start_child(argv, log_path=self._log_path, env=self._env, pass_fds=(theirs.fileno(),))

    def _begin_again(self) -> None:
        self.close()
        self._is_ready = False
        self._begin()

    def _forked(self, order: bytes, log_path: Path) -> int:
        """Send an order, and let the forked process go on once its pid is known here: one whose answer is late ends."""
        # Memory, not the message: an environment may be longer than a message.
        given = os.memfd_create("order")
        may_go, go = os.pipe()
        try:
            with open(given, "wb", closefd=False) as file:
                file.write(order)
            os.lseek(given, 0, os.SEEK_SET)
            with open_log(log_path) as log:
                socket.send_fds(self._channel, [b"start"], [given, log.fileno(), may_go])
            if not select.select([self._channel], [], [], _REPLY_S)[0]:
                raise TimeoutError(f"the fork server did not answer within {_REPLY_S:g} s")
            reply = self._channel.recv(256).decode()
            if not reply:
                raise ConnectionResetError("the fork server has ended")
            if not reply.isdigit():
                raise OSError(f"the fork server cannot fork: {reply}")
            with contextlib.suppress(BrokenPipeError):  # killed already
                os.write(go, b"go")
        finally:
            for descriptor in (given, may_go, go):
                os.close(descriptor)
        return int(reply)


class AdoptedProcess:
    """A child that another process forked: what `ChildProcess` needs of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Reap it where it has exited; return its exit code, `None` while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped elsewhere: nothing tells how it ended
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def terminate(self) -> None:
        """Send SIGTERM; nothing where it has exited."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code; raises `subprocess.TimeoutExpired`."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.002)
        return code


def reap_orphans(known: Sequence[int]) -> None:
    """Reap the children that programs left behind, which come to a subreaper; those of `known` are waited for elsewhere."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in known:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
