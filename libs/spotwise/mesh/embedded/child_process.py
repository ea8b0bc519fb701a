"""Child processes.

Linux only. A child has its own session, so that a terminal's Ctrl-C reaches only the parent; the kernel kills it when the
*thread* that started it ends (prctl(2), PR_SET_PDEATHSIG), so start children from the main thread. A process is identified by
pid *and* start time, so that no signal reaches a later process with the same pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

# Runs between fork and the program; a `preexec_fn` would run Python in a forked copy of a process with threads. A parent that
# died before prctl shows as a different parent pid.
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
    """One process, distinct from a later one with its pid; `start_ticks`: clock ticks since boot (/proc/PID/stat, field 22)."""

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a running process; `None` where there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold blanks and parentheses.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return ProcessIdentity(pid, int(fields[19]))


def is_alive(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, signal_number: signal.Signals) -> bool:
    """Send a signal to exactly this process; `False` when it is gone. Raises `PermissionError` for another user's."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor, unlike the pid, cannot come to mean another process.
        if identify(process.pid) != process:
            return False
        signal.pidfd_send_signal(descriptor, signal_number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


class _Waited(Protocol):
    """What a child is waited for by: `subprocess.Popen`, or its like for what another process forked."""

    pid: int

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ChildProcess:
    """A running child, made by `start_child` or a `ForkServer`."""

    def __init__(self, popen: _Waited) -> None:
        self._popen = popen
        # A child that has already exited is a zombie, without an identity.
        self.identity = identify(popen.pid) or ProcessIdentity(popen.pid, 0)

    @property
    def pid(self) -> int:
        """Its pid, which is also the program's: a guard replaces itself by exec."""
        return self.identity.pid

    def exit_code(self) -> int | None:
        """Return its exit code (minus the signal's number where a signal ended it); `None` while it runs."""
        return self._popen.poll()

    def terminate(self) -> None:
        """Send SIGTERM; nothing where it has exited."""
        self._popen.terminate()

    def kill(self) -> None:
        """Send SIGKILL to its process group, and reap it."""
        self.end()
        self._popen.wait()

    def end(self) -> None:
        """Send SIGKILL to its process group without waiting for its exit."""
        if self._popen.poll() is None:
            # Not reaped yet, so its pid still names its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has exited; `False` where it still runs after `timeout_s`."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM, and SIGKILL where it has not exited within `grace_s`."""
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
    pass_fds: Sequence[int] = (),
) -> ChildProcess:
    """Start a program that dies with this process.

    Args:
        argv: a program that cannot be run shows as exit status 1 and a line in the log.
        log_path: receives stdout and stderr, readable by its owner alone; dropped where it cannot be opened.
        env: the whole environment; `None`: this process's.
        folder: working folder; `None`: this process's.
        stdin: its input: for secrets, which must be in no file and no command line. The program may open /dev/stdin anew.
        pass_fds: descriptors that it inherits.
    """
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
    # Memory, not a pipe: a pipe without a reader holds one page only where its user has many of them.
    given = os.memfd_create("stdin")
    try:
        with open(given, "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(given, 0, os.SEEK_SET)
        with open_log(log_path) as log:
            popen = subprocess.Popen(
                [*guard, *argv],
                stdin=given,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=folder,
                start_new_session=True,
                pass_fds=pass_fds,
            )
    finally:
        os.close(given)
    return ChildProcess(popen)


def open_log(path: Path) -> IO[bytes]:
    """Open a log; a full disk or a missing folder must not keep a program from starting."""
    try:
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    except OSError:
        return Path(os.devnull).open("ab")
