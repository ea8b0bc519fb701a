"""Keeps UCX to the loopback interface where a worker's peers are on its own machine.

UCXX's listener takes no address, so UCX binds it to all interfaces. The kernel is asked to give it only what comes over
loopback (`SO_BINDTODEVICE`, which needs no privilege since Linux 5.7); UCX's own TCP ports open on the interfaces that
`UCX_NET_DEVICES` leaves. Devices of RDMA have no TCP port and stay in use.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

_LOOPBACK_INTERFACE = "lo"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_DESCRIPTORS = Path("/proc/self/fd")


def is_loopback(host: str) -> bool:
    """Whether peers that are given this name or address can only be on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def loopback_devices() -> dict[str, str]:
    """UCX's option that leaves the loopback interface, and RDMA's active ports; empty where the user chose devices."""
    if "UCX_NET_DEVICES" in os.environ:
        return {}
    active = [
        f"{port.parts[-3]}:{port.name}"
        for port in sorted(_RDMA_DEVICES.glob("*/ports/*"))
        if "ACTIVE" in (port / "state").read_text()
    ]
    return {"NET_DEVICES": ",".join([_LOOPBACK_INTERFACE, *active])}


def keep_to_loopback(port: int) -> None:
    """Have the kernel refuse connections over other interfaces to the port that this process listens on.

    Raises:
        OSError: the kernel does not allow it, or this process does not listen there.
    """
    found = False
    for listener in listeners(port):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK_INTERFACE.encode() + b"\0")
        found = True
    if not found:
        raise OSError(f"no socket of this process listens on port {port}")


def listeners(port: int) -> Iterator[socket.socket]:
    """Yield this process's sockets that listen on a port, as duplicates: UCX does not expose the descriptor of its own."""
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
