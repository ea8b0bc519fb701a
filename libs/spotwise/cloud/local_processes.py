"""Processes that stand for machines of the provider `local`; Linux only.

A machine is its first process, a guard, and all descendants, known by session and by a mark in their environment. It ends with
the supervisor that it is given. A process is identified by pid, start time and boot; signals go through a pidfd, so that a
reused pid is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

#: Environment variable that marks a machine's processes. Its value includes the folder, so it is unique on this computer.
MARK = "SPOTWISE_INSTANCE"

#: What a program leaves behind has so long from SIGTERM to SIGKILL.
_LEFT_S = 30.0

# A separate program, so that a process with threads is never forked. It writes the machine's process file before the machine
# runs anything, and holds the caller's lock meanwhile: the next holder of the lock can rely on the file.
# The machine's first process guards the program, once the launcher, which has the mark as well, has ended: it passes SIGTERM
# on. Once the program has ended, it ends what is left, by SIGTERM and then by SIGKILL; once the supervisor has, everything, by
# SIGKILL. The kernel kills the program if the guard is killed (PR_SET_PDEATHSIG), and the next listing what is left then.
# `become`, where it is given, is the program in place of an executed one.
LAUNCHER = """
import ctypes, os, select, signal, sys, time
path, lock, owner, mark, left_s, *argv = sys.argv[1:]
reader, writer = os.pipe()
launcher = os.pidfd_open(os.getpid())
if os.fork():
    os.close(writer)
    with open(reader) as failed:
        sys.exit(failed.read() or 0)

def fail(words):
    os.unlink(path)
    os.write(writer, words.encode())
    os._exit(1)

def stat_of(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return None

os.setsid()
os.dup2(1, 2)
guard = os.getpid()
with open("/proc/sys/kernel/random/boot_id") as boot:
    known = f"{guard} {int(stat_of(guard)[19])} {boot.read().strip()}"
with open(path + ".draft", "w") as draft:
    draft.write(known)
os.replace(path + ".draft", path)
os.close(int(lock))
watched = select.poll()
supervisor = None
if owner:
    pid, ticks = map(int, owner.split(":"))
    try:
        supervisor = os.pidfd_open(pid)
    except OSError:
        fail("its supervisor has ended")
    stat = stat_of(pid)
    if stat is None or int(stat[19]) != ticks or stat[0] in (b"Z", b"X"):
        fail("its supervisor has ended")
    watched.register(supervisor, select.POLLIN)

program = os.fork()
if not program:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    if os.getppid() != guard:
        os._exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        globals().get("become", lambda argv: os.execvpe(argv[0], argv, os.environ))(argv)
    except OSError as error:
        fail(f"cannot run {argv[0]}: {error.strerror}")
os.close(writer)
started = select.poll()
started.register(launcher, select.POLLIN)
started.poll()
os.close(launcher)

def others():
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == guard:
            continue
        stat = stat_of(entry)
        if stat is None or stat[0] in (b"Z", b"X"):
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ:
                is_marked = mark.encode() in environ.read().split(bytes(1))
        except OSError:
            is_marked = False
        if is_marked or int(stat[3]) == guard:
            found.append(int(entry))
    return found

def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass

ends_at = None
signal.signal(signal.SIGTERM, lambda *_: send([program] if ends_at is None else others(), signal.SIGTERM))
child = os.pidfd_open(program)
watched.register(child, select.POLLIN)
while ends_at is None or others():
    ready = [found for found, _ in watched.poll(None if ends_at is None else 100)]
    if child in ready:
        watched.unregister(child)
        os.waitpid(program, 0)
        ends_at = time.monotonic() + float(left_s)
        send(others(), signal.SIGTERM)
    if supervisor in ready:
        ends_at = 0
    if ends_at is not None and time.monotonic() >= ends_at:
        send(others(), signal.SIGKILL)
        time.sleep(0.01)
"""


class StartError(Exception):
    """A machine's program cannot be run; the message names the cause."""


@dataclass(frozen=True, slots=True)
class MachineProcess:
    """The first process of a machine.

    Attributes:
        pid: process id, also its session's id.
        start_ticks: start time in clock ticks since boot (field 22 of /proc/PID/stat).
        boot_id: id of the boot in which it started.
        mark: the value of `MARK` in its environment.
    """

    pid: int
    start_ticks: int
    boot_id: str
    mark: str

    @classmethod
    def read(cls, path: Path, mark: str) -> MachineProcess | None:
        """Read the process file that the launcher wrote; `None`: the machine was never started."""
        try:
            pid, ticks, boot_id = path.read_text().split()
        except FileNotFoundError:
            return None
        return cls(int(pid), int(ticks), boot_id, mark)

    def is_alive(self) -> bool:
        """Whether any process of the machine still runs."""
        first = _stat(self.pid)
        if first is not None and first.start_ticks == self.start_ticks and not first.has_ended:
            return _boot_id() == self.boot_id
        return next(self._members(), None) is not None

    def terminate(self) -> None:
        """Send SIGTERM to the first process, which ends its descendants; if it has ended, to all remaining processes."""
        members = list(self._members())
        first = [member for member in members if member == (self.pid, self.start_ticks)]
        for pid, ticks in first or members:
            _send(pid, ticks, signal.SIGTERM)

    def left_behind(self) -> bool:
        """Whether processes still run although the first one has ended."""
        members = list(self._members())
        return bool(members) and (self.pid, self.start_ticks) not in members

    def kill(self) -> None:
        """Send SIGKILL to all processes of the machine."""
        for pid, ticks in self._members():
            _send(pid, ticks, signal.SIGKILL)

    def _members(self) -> Iterator[tuple[int, int]]:
        """Yield pid and start time of every living process of the machine."""
        if _boot_id() != self.boot_id:
            return
        first = _stat(self.pid)
        # While the first process exists, even as a zombie, no other session can have its id.
        own_session = first is not None and first.start_ticks == self.start_ticks
        mark = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            pid = int(entry.name)
            stat = _stat(pid)
            if stat is None or stat.has_ended:
                continue
            if (own_session and stat.session == self.pid) or mark in _environment(pid):
                yield pid, stat.start_ticks


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the launcher.

    Attributes:
        arguments: the launcher's own, of which the second is the number of `lock`.
        lock: a descriptor that the launcher keeps open until the process file is written.
        output: stdout and stderr of the machine.
        folder: working folder.
        env: the complete environment.
    """

    arguments: Sequence[str]
    lock: int
    output: IO[bytes]
    folder: Path
    env: Mapping[str, str]


def execute(launch: Launch) -> str:
    """Run the launcher as a new program; return what is wrong, empty where its machine has started."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, *launch.arguments],
        stdin=subprocess.DEVNULL,
        stdout=launch.output,
        stderr=subprocess.PIPE,
        cwd=launch.folder,
        env=launch.env,
        pass_fds=[launch.lock],
        check=False,
    )
    said = done.stderr.decode(errors="replace").strip()
    return said or f"the launcher ended with {done.returncode}" if done.returncode else ""


def start_machine(
    argv: Sequence[str],
    *,
    known_at: Path,
    log: Path,
    folder: Path,
    env: Mapping[str, str],
    mark: str,
    lock_fd: int,
    supervisor: str = "",
    run: Callable[[Launch], str] = execute,
) -> MachineProcess:
    """Start a machine in its own session.

    Args:
        argv: program and arguments.
        known_at: path of the process file.
        log: stdout and stderr are appended to it.
        folder: working folder.
        env: the complete environment; the mark is added.
        mark: unique on this computer.
        lock_fd: a descriptor that the launcher keeps open until the process file is written.
        supervisor: `PID:START` of the process with which the machine ends; empty: it ends with none.
        run: runs the launcher, as `execute` does.

    Raises:
        StartError: its program cannot be run.
    """
    arguments = [str(known_at), str(lock_fd), supervisor, f"{MARK}={mark}", str(_LEFT_S), *argv]
    with log.open("ab") as output:
        wrong = run(
            Launch(
                arguments,
                lock_fd,
                output,
                folder,
                {MARK: mark, **{name: value for name, value in env.items() if name != MARK}},
            )
        )
    process = MachineProcess.read(known_at, mark)
    if wrong or process is None:
        raise StartError(wrong or "the launcher wrote no process file")
    return process


@dataclass(frozen=True, slots=True)
class _Stat:
    session: int
    start_ticks: int
    has_ended: bool


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may include blanks and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X"))


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has just ended, or belongs to another user and thus to no machine of ours
        return []


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _send(pid: int, start_ticks: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            # Unlike the pid, the descriptor always refers to the same process.
            stat = _stat(pid)
            if stat is not None and stat.start_ticks == start_ticks:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
