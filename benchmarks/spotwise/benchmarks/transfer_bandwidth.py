"""Bandwidth between two processes of this machine: our transport's, and `ucx_perftest`'s.

Both move messages of one size over the same UCX transports with the same settings, one after the other.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import uvloop

from spotwise.benchmarks.transfer_peer import BLOCKS, PEER_ID, PEER_INCARNATION, PeerOptions, kv_memory, push_bytes
from spotwise.cli.errors import CommandError
from spotwise.core.requests.record import KvHandoff, KvTarget
from spotwise.mesh.embedded.servers import free_port
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport

_END_S = 10.0
_PERFTEST_S = 120.0
#: The settings of `ucx_reactor` for our own transfers.
_SETTINGS = {"UCX_TCP_TX_SEG_SIZE": "256k", "UCX_TCP_RX_SEG_SIZE": "256k", "UCX_RNDV_SCHEME": "put_zcopy"}
_WARM_UP_PUSHES = 2


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Our transport's bandwidth over all pushes, and the transports that carried them."""

    bytes_per_s: float
    transport: str

    @property
    def ucx_transports(self) -> str:
        """The transports without their devices, in the format of `UCX_TLS`."""
        return ",".join(sorted({lane.split("/")[0] for lane in self.transport.split(",")}))


def push_bandwidth(chunk_bytes: int, pushes: int, *, copies: bool, is_encrypted: bool = False) -> Bandwidth:
    """Push to another process, one push after the other, in messages of `chunk_bytes`; the others as in `PeerOptions`."""
    options = PeerOptions(pushes + _WARM_UP_PUSHES, chunk_bytes, copies, is_encrypted)
    with _peer(options) as address:
        return uvloop.run(_push(options, address))


async def _push(options: PeerOptions, address: str) -> Bandwidth:
    transport = UcxKvTransport(
        kv_memory(options),
        "sender",
        1,
        on_handoff=lambda handoff, report: None,
        settings=TransferSettings(chunk_bytes=options.chunk_bytes, security=options.security()),
    )
    await transport.start()
    blocks = tuple(range(BLOCKS))
    target = KvTarget(PEER_ID, PEER_INCARNATION, address, blocks)
    started_s, moved, name = 0.0, 0, ""
    try:
        for number in range(options.pushes):
            if number == _WARM_UP_PUSHES:
                started_s, moved = time.perf_counter(), 0
            report = await transport.push(target, KvHandoff(f"push-{number}", 1, 1, 0), blocks)
            moved, name = moved + report.kv_bytes, report.transport
        return Bandwidth(moved / (time.perf_counter() - started_s), name)
    finally:
        await transport.close()


@contextlib.contextmanager
def _peer(options: PeerOptions) -> Iterator[str]:
    argv = [sys.executable, "-P", "-m", "spotwise.benchmarks.transfer_peer", orjson.dumps(asdict(options)).decode()]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise CommandError("the receiving process did not start; its error is above")
            yield address
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()


def perftest_program() -> Path:
    """The path of `ucx_perftest` in the package that brings UCX; raises `CommandError` where it is missing."""
    found = importlib.util.find_spec("libucx")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    for folder in folders:
        program = Path(folder) / "bin" / "ucx_perftest"
        if program.exists():
            return program
    raise CommandError("ucx_perftest is not installed: the package libucx-cu12 brings it")


def perftest_bandwidth(program: Path, message_bytes: int, messages: int, transports: str) -> float:
    """Return the bytes a second that `ucx_perftest` moves in tagged messages, many in flight.

    Raises:
        CommandError: it failed, or printed an unknown format.
    """
    port = free_port()
    libraries = os.pathsep.join(
        part for part in (str(program.parent.parent / "lib"), os.environ.get("LD_LIBRARY_PATH")) if part
    )
    env = {**_SETTINGS, **os.environ, "LD_LIBRARY_PATH": libraries, "UCX_TLS": transports}
    env |= {"UCX_WARN_UNUSED_ENV_VARS": "n"}
    test = ["-t", "tag_bw", "-s", str(message_bytes), "-n", str(messages), "-w", str(max(1, messages // 10))]
    with subprocess.Popen(
        [program, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    ) as server:
        try:
            deadline_s = time.monotonic() + _END_S
            while True:
                client = subprocess.run(
                    [program, "127.0.0.1", "-p", str(port), *test],
                    capture_output=True,
                    text=True,
                    env=env,
                    timeout=_PERFTEST_S,
                    check=False,
                )
                # the server may not listen yet
                if client.returncode == 0 or time.monotonic() > deadline_s or server.poll() is not None:
                    break
                time.sleep(0.1)
        finally:
            server.kill()
    if client.returncode != 0:
        raise CommandError(f"ucx_perftest failed: {client.stderr.strip() or client.stdout.strip()}")
    return overall_bandwidth(client.stdout)


def overall_bandwidth(text: str) -> float:
    """Parse a whole run's bytes a second from the output of `ucx_perftest`; raises `CommandError` without the last line.

    That is `Final:`, iterations, three overheads in microseconds (typical, average, overall), bandwidth in MiB/s (average,
    overall), messages a second (average, overall).
    """
    found = re.search(r"^Final:\s+(.*)$", text, re.MULTILINE)
    figures = found.group(1).split() if found else []
    if len(figures) != 8:
        raise CommandError(f"ucx_perftest says something else than expected:\n{text.strip()}")
    return float(figures[5]) * 2**20


def messages_of_one_push(message_bytes: int) -> int:
    """The number of messages of a size in one push."""
    return max(1, push_bytes() // message_bytes)
