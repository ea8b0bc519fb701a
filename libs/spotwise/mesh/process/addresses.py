"""Classifies network addresses: those of this machine, and those of its loopback interface."""

from __future__ import annotations

import ipaddress
import socket

_DISCARD_PORT = 9


def is_loopback(host: str) -> bool:
    """Whether this name or address reaches this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def is_local(host: str | None) -> bool:
    """Whether what is sent to this numeric address stays on this host; an unknown one (`None`) or a name does not count.

    The kernel chooses an address of this host as its own source, and no other one. Nothing is sent.
    """
    try:
        address = ipaddress.ip_address((host or "").strip("[]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _DISCARD_PORT))
            return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address
    except OSError:
        return False
