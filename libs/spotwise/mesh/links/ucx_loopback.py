"""Restricts UCX to the loopback interface where a worker's peers are on its own machine. UCXX's listener takes no address, so
that UCX binds it to all interfaces; `SO_BINDTODEVICE` (no privilege needed since Linux 5.7) restricts it to loopback. UCX's
own TCP ports open on the interfaces of `UCX_NET_DEVICES`. RDMA devices have no TCP port and stay.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

_LOOPBACK_INTERFACE = "lo"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_DESCRIPTORS = Path("/proc/self/fd")


def loopback_devices() -> dict[str, str]:
    """Return UCX's option for the loopback interface and RDMA's active ports; empty where the user chose devices."""
    if "UCX_NET_DEVICES" in os.environ:
        return {}
    active = [
        f"{port.parts[-3]}:{port.name}"
        for port in sorted(_RDMA_DEVICES.glob("*/ports/*"))
        if "ACTIVE" in (port / "state").read_text()
    ]
    return {"NET_DEVICES": ",".join([_LOOPBACK_INTERFACE, *active])}


def keep_to_loopback(port: int) -> None:
    """Restrict this process's listener on a port to the loopback interface; raises `OSError` where the kernel does not allow
    it, or this process does not listen there.
    """
    found = False
    for listener in listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK_INTERFACE.encode() + b"\0")
        found = True
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")


def listeners(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's sockets that listen on a port: UCX does not expose its descriptor."""
    for entry in _DESCRIPTORS.iterdir():
        try:
            descriptor = os.dup(int(entry.name))
        except OSError:  # closed meanwhile: the descriptor of this listing itself
            continue
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            continue
        with socket.socket(fileno=descriptor) as candidate:
            is_internet = candidate.family in (socket.AF_INET, socket.AF_INET6)
            listens = is_internet and candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and candidate.getsockname()[1] == port:
                yield candidate
