"""A gateway with little memory, and sockets that behave badly."""

from __future__ import annotations

import resource
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tests.live.mesh import LiveMesh
from tests.live.steady_stream import Lap

#: What a gateway under attack may have.
MEMORY_BYTES = 3 << 29


def limit_memory(pid: int) -> None:
    """Let a process have no more writable memory of its own than that; more fails in it."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BYTES, hard))


def memory_high_water_bytes(pid: int) -> int:
    """The most memory that a process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def tell(mesh: LiveMesh, lap: Lap) -> None:
    """Write figures into the test's output (`pytest -s`)."""
    memory_mib = memory_high_water_bytes(mesh.pid("gateway-0")) >> 20
    gap_ms, turn_ms, starved_ms = (1000 * each for each in (lap.longest_gap_s, lap.longest_turn_s, lap.starved_s))
    figures = f"gap {gap_ms:.0f} ms, turn {turn_ms:.0f} ms, starved {starved_ms:.0f} ms"
    sys.stdout.write(f" longest {figures}, {memory_mib} MiB at most ")


def connect(url: str, receive_buffer_bytes: int | None = None) -> socket.socket:
    """A bare connection to a gateway."""
    where = urlsplit(url)
    connection = socket.socket()
    connection.settimeout(30.0)
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    connection.connect((where.hostname, where.port))
    return connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """Return the bytes that the gateway sends before it closes or resets the connection."""
    said = bytearray()
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return bytes(said)
