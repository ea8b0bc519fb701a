"""A child process that cannot outlive the one that started it.

Law: a child has a session of its own, so a terminal's Ctrl-C reaches only the parent, and it asks the kernel for
SIGKILL when the parent is gone, however the parent went (prctl(2), PR_SET_PDEATHSIG). A process is always named by its
pid *and* its start time, so that a signal never reaches a stranger that was given the same pid later.

The kernel takes the *thread* that forked for the parent: start children from a thread that lives as long as they should,
which in practice is the main one. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

# Runs between fork and the real program, as a program of its own instead of a `preexec_fn`: that would run Python in a forked
# copy of a process with threads. A parent that died before the request was made shows as a different parent pid.
_GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, told apart from a later one with the same pid.

    Attributes:
        pid: as the kernel numbers it.
        start_ticks: when it started, in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """Identity of a running process; None when there is none, or only a zombie that its parent has yet to reap."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything, blanks and parentheses included.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessIdentity(pid, int(fields[19]))


def is_alive(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, signal_number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False when it is gone.

    Raises:
        PermissionError: it belongs to another user.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # From here on the descriptor, unlike the pid, cannot come to mean another process.
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(descriptor, signal_number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


class ChildProcess:
    """A running child: made by `start_child`."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        # A child that has already exited is still a zombie of ours, which has no identity any more.
        self.identity = identify(popen.pid) or ProcessIdentity(popen.pid, 0)

    @property
    def pid(self) -> int:
        """Its pid, which is also the service's: the guard replaces itself by the program."""
        return self.identity.pid

    def exit_code(self) -> int | None:
        """How it ended (minus the signal number when a signal ended it); None while it runs."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Ask it to leave (SIGTERM); nothing when it has left."""
        self._popen.terminate()

    def kill(self) -> None:
        """End it and every process of its session's group at once, and reap it."""
        self.end()
        self._popen.wait()

    def end(self) -> None:
        """Send SIGKILL to it and every process of its session's group, without waiting; `exit_code` tells when it is gone."""
        if self._popen.poll() is None:
            # It is not reaped yet, so its pid still names its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has left; False when it still runs after `timeout_s`."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask it to leave, and end it when it has not within `grace_s`."""
        self.terminate()
        if not self.wait(grace_s):
            self.kill()


def start_child(
    argv: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: bytes = b"",
) -> ChildProcess:
    """Start a program that dies with this process.

    Args:
        argv: program and arguments; a program that cannot be run shows as exit status 1 and a line in the log.
        log_path: stdout and stderr are appended to it, for nobody else to read; dropped where it cannot be opened.
        env: the whole environment; this process's own when None.
        folder: working folder; this process's own when None.
        stdin: what it reads, a few kilobytes at most: secrets come this way into no file and no command line.
    """
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    # A pipe holds this much without a reader.
    assert len(stdin) <= select.PIPE_BUF
    reader, writer = os.pipe()
    try:
        os.write(writer, stdin)
        os.close(writer)
        with _open_log(log_path) as log:
            popen = subprocess.Popen(
                [*guard, *argv],
                stdin=reader,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=folder,
                start_new_session=True,
            )
    finally:
        os.close(reader)
    return ChildProcess(popen)


def _open_log(path: Path) -> IO[bytes]:
    """A disk that is full, or a folder that is gone, is no reason not to start a program."""
    try:
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError:
        return Path(os.devnull).open("ab")
