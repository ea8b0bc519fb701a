"""Ports that stay free between their choice and their use, which a mesh's gateway begins seconds later (Linux only)."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: As many ports below those of outgoing connections are taken from.
_PORTS = 12_000
_FIRST = 10_000
_TRIES = 32
#: What this process claims.
_claimed: set[int] = set()


def quiet_ports() -> Iterator[int]:
    """Give ports to try, in this order; at last 0, for any one that the system names.

    No outgoing connection is given one of the others, and no other process that asks here, while this process runs. Which are
    free is for the caller to try.
    """
    try:
        first_outgoing = int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_outgoing = 0
    first = max(_FIRST, first_outgoing - _PORTS)
    if first_outgoing - first >= _TRIES:
        # Processes whose generators have the same seed would meet at the same ports.
        for port in random.SystemRandom().sample(range(first, first_outgoing), _TRIES):
            if claim_port(port):
                yield port
    yield 0


def claim_port(port: int) -> bool:
    """Keep a port from the other processes that look for one here; `False` where it is claimed already.

    The claim is an abstract Unix socket: it ends with its process, however that ends, and holds in the network namespace.
    """
    if port in _claimed:
        return False
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0spotwise-port-{port}")
    except OSError:
        claim.close()
        return False
    claim.detach()  # it stays open
    _claimed.add(port)
    return True
