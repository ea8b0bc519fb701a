"""Ports that stay free between their choice and their use: the system gives them to no outgoing connection."""

from __future__ import annotations

import random
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: As many ports below those of outgoing connections are taken from.
_PORTS = 12_000
_FIRST = 10_000
_TRIES = 32


def quiet_ports() -> list[int]:
    """Return ports to try, in this order; at last 0, for any one that the system names."""
    try:
        first_outgoing = int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return [0]
    first = max(_FIRST, first_outgoing - _PORTS)
    if first_outgoing - first < _TRIES:
        return [0]
    return [*random.sample(range(first, first_outgoing), _TRIES), 0]
