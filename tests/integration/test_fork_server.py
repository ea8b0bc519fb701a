"""Programs that a fork server starts are like programs that are executed; real processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spotwise.mesh.embedded.child_process import ChildProcess, is_alive
from spotwise.mesh.embedded.fork_server import ForkServer, reap_orphans
from tests.integration.running_services import wait_for

#: Prints what a program can see of its start, and ends with a status of its own.
SHOWS = """
import json, os, signal, sys
IMPORTED = os.getpid()
def main():
    import fork_helper
    print(json.dumps({
        "name": __name__, "argv": sys.argv[1:], "given": os.environ.get("GIVEN"), "server's": os.environ.get("SERVERS"),
        "folder": os.getcwd(), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read(),
        "helper": fork_helper.IMPORTED, "pid": os.getpid(), "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }))
    sys.exit(7)
if __name__ == "__main__":
    main()
"""
LASTS = """
import os, subprocess, sys, time
def main():
    print("began", flush=True)
    if os.environ.get("LEAVES"):
        left = subprocess.Popen(["sleep", "0.3"], start_new_session=True)
        print(left.pid, flush=True)
        return
    time.sleep(600)
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Modules that a server imports; and this process is no subreaper afterwards, as it was before."""
    package = tmp_path / "shows"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SHOWS)
    (tmp_path / "lasts.py").write_text(LASTS)
    (tmp_path / "fork_helper.py").write_text("import os\nIMPORTED = os.getpid()\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('what is wrong')\n")
    yield tmp_path
    ctypes.CDLL(None).prctl(36, 0)


@pytest.fixture
def server(folder: Path) -> Iterator[ForkServer]:
    """One that has imported its modules."""
    env = {**os.environ, "PYTHONPATH": str(folder), "SERVERS": "own"}
    server = ForkServer(["shows", "lasts", "broken"], ["fork_helper", "no_such_module"], folder / "server.log", env)
    wait_for(server.is_settled)
    yield server
    server.close()


def started(server: ForkServer, module: str, folder: Path, **env: str) -> tuple[ChildProcess, Path]:
    log = folder / f"{module}.log"
    return server.start(module, log_path=log, env={"PATH": os.environ["PATH"], **env}), log


def test_a_forked_program_is_like_one_that_was_executed(server: ForkServer, folder: Path) -> None:
    """Its environment, arguments, folder, session, parent, input, output and exit status; it imported nothing anew."""
    child, log = started(server, "shows", folder, GIVEN="this")
    assert child.wait(20.0)
    assert child.exit_code() == 7
    seen = json.loads(log.read_text())
    assert seen.pop("descriptors") <= 4  # with the one that lists them
    assert seen == {
        "name": "__main__",
        "argv": [],
        "given": "this",
        "server's": None,
        "folder": str(Path.cwd()),
        "parent": os.getpid(),
        "leads": True,
        "stdin": "",
        "helper": server.pid,
        "pid": child.pid,
        "threads": 1,
    }
    assert log.stat().st_mode & 0o777 == 0o600


def test_it_is_shown_by_its_own_name(server: ForkServer, folder: Path) -> None:
    """As `ps` shows a program that was executed."""
    child, log = started(server, "lasts", folder)
    wait_for(log.read_text)
    assert psutil.Process(child.pid).cmdline() == [sys.executable, "-P", "-m", "lasts"]
    child.kill()
    assert child.exit_code() == -signal.SIGKILL


def test_it_ends_by_signals_and_is_reaped(server: ForkServer, folder: Path) -> None:
    """SIGTERM to it, SIGKILL to its group; nothing of it is left."""
    for end, code in ((ChildProcess.terminate, -signal.SIGTERM), (ChildProcess.end, -signal.SIGKILL)):
        child, _ = started(server, "lasts", folder)
        assert child.exit_code() is None
        assert not child.wait(0.01)
        end(child)
        assert child.wait(20.0)
        assert child.exit_code() == code
        assert not psutil.pid_exists(child.pid)
        child.terminate()  # gone: nothing happens


def test_a_module_that_cannot_be_imported_fails_in_the_program(server: ForkServer, folder: Path) -> None:
    """It says so in its own log, as an executed one does; the server serves on."""
    for module, reason in (("broken", "what is wrong"), ("no_such_program", "No module named")):
        child, log = started(server, module, folder)
        assert child.wait(20.0)
        assert child.exit_code() == 1
        assert reason in log.read_text()
    assert not (folder / "server.log").read_text()


def test_programs_outlive_their_server_and_it_begins_again(server: ForkServer, folder: Path) -> None:
    """The start that finds it dead fails; those once it has begun again succeed."""
    first, _ = started(server, "lasts", folder)
    os.kill(server.pid, signal.SIGKILL)
    wait_for(server.is_settled)
    with pytest.raises(OSError):
        started(server, "lasts", folder)
    assert is_alive(first.identity)
    wait_for(server.is_settled)
    second, log = started(server, "shows", folder)
    assert second.wait(20.0)
    assert f'"helper": {server.pid}' in log.read_text()
    first.kill()


def test_a_server_that_does_not_answer_is_replaced(
    server: ForkServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still: the start fails in time, and the late answer belongs to no later start."""
    monkeypatch.setattr("spotwise.mesh.embedded.fork_server._REPLY_S", 0.2)
    os.kill(server.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match="did not answer"):
        started(server, "lasts", folder)
    monkeypatch.undo()
    wait_for(server.is_settled)
    child, _ = started(server, "shows", folder)
    assert child.wait(20.0)
    assert child.exit_code() == 7


def test_a_program_whose_order_was_given_up_does_not_run(server: ForkServer, folder: Path) -> None:
    """Its order was given up while the server forked: two processes of one service would be at work."""
    log = folder / "lasts.log"
    (folder / "order").write_text(json.dumps({"module": "lasts", "env": {}, "folder": str(folder)}))
    may_go, go = os.pipe()
    os.close(go)
    with (folder / "order").open() as order, log.open("w") as output:
        socket.send_fds(server._channel, [b"start"], [order.fileno(), output.fileno(), may_go])
    os.close(may_go)
    pid = int(server._channel.recv(64))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert not log.read_text()


def test_a_program_has_nothing_of_anothers_environment(server: ForkServer, folder: Path) -> None:
    """Neither in its environment nor anywhere in its memory, which it has of the server."""
    secret = "-".join(["canary", "of", "another"])
    first, log = started(server, "lasts", folder, SECRET=secret)
    wait_for(log.read_text)
    log.unlink()
    second, log = started(server, "lasts", folder)
    wait_for(log.read_text)
    has = {child: secret.encode() in memory_of(child.pid) for child in (first, second)}
    assert has == {first: True, second: False}
    first.kill()
    second.kill()


def memory_of(pid: int) -> bytes:
    """What a process can write to."""
    parts = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.split()[1].startswith("rw"):
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                memory.seek(start)
                parts.append(memory.read(end - start))
    return b"".join(parts)


def test_what_programs_leave_behind_is_reaped(server: ForkServer, folder: Path) -> None:
    """It comes to this process, which did not know of it; what is waited for elsewhere is left alone."""
    child, log = started(server, "lasts", folder, LEAVES="1")
    wait_for(lambda: len(log.read_text().split()) == 2)
    left = int(log.read_text().split()[1])
    wait_for(lambda: not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE)
    reap_orphans([child.pid, server.pid])
    if child.wait(20.0):
        reap_orphans([child.pid, server.pid])
    assert child.exit_code() == 0
    assert not psutil.pid_exists(left)
