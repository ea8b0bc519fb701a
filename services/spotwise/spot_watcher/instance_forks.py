"""Local instances that start in a fraction of a second: forked from a process that has imported their modules."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spotwise.cloud.local_processes import Launch, execute
from spotwise.core.access.secret_variables import environment_for
from spotwise.mesh.embedded.child_process import start_child
from spotwise.mesh.embedded.fork_server import ENV

_PROGRAM = "spotwise.spot_watcher.instance_forking"
#: For imports on a busy machine; an instance that is executed meanwhile would import the same.
_IMPORTS_S = 60.0
#: For a launcher, which forks twice.
_REPLY_S = 30.0
#: Bytes of environment, beside this process's, that /proc/PID/environ of an instance has room for.
_ROOM_BYTES = 4096


class InstanceForks:
    """Runs launchers of local instances in forks of a server (`instance_forking.py`), which ends with this process.

    Args:
        program: the module that instances run.
        modules: what it imports later.
        environ: this process's environment; the server gets neither its secrets nor its settings.
        log_path: receives what the imports print.
    """

    def __init__(self, program: str, modules: Sequence[str], environ: Mapping[str, str], log_path: Path) -> None:
        own = environment_for("", environ)
        room = "-" * (_ROOM_BYTES + sum(len(name) + len(value) + 2 for name, value in environ.items()))
        env = {name: value for name, value in own.items() if not name.startswith("SPOTWISE_")} | ENV
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno()), program, "--", *modules]
            self._server = start_child(
                argv, log_path=log_path, env={**env, "SPOTWISE_ROOM": room}, pass_fds=(theirs.fileno(),)
            )
        self._is_ready = False

    def run(self, launch: Launch) -> str:
        """Run a launcher; return what is wrong, empty where its machine has started. Executes it where the server cannot."""
        if not self._is_ready:
            self._is_ready = bool(self._received(_IMPORTS_S))
        if not self._is_ready or self._server.exit_code() is not None:
            return execute(launch)
        order = os.memfd_create("order")
        try:
            with open(order, "wb", closefd=False) as file:
                given = {"arguments": list(launch.arguments), "env": dict(launch.env), "folder": str(launch.folder)}
                file.write(json.dumps(given).encode())
            os.lseek(order, 0, os.SEEK_SET)
            try:
                socket.send_fds(self._channel, [b"launch"], [order, launch.output.fileno(), launch.lock])
            except OSError:  # it has just ended
                return execute(launch)
        finally:
            os.close(order)
        reply = self._received(_REPLY_S)
        if not reply:
            return "the fork server of instances has ended, or does not answer"
        said = reply[1:].decode(errors="replace").strip()
        return said or "the launcher has ended" if reply.startswith(b"1") else ""

    def close(self) -> None:
        """End the server; the instances go on."""
        self._channel.close()
        self._server.kill()

    def _received(self, patience_s: float) -> bytes:
        """Return the server's next message; empty where there is none."""
        with contextlib.suppress(OSError):
            if select.select([self._channel], [], [], patience_s)[0]:
                return self._channel.recv(8192)
        return b""
