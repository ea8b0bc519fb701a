"""Loses packets of one process on loopback, in one direction or both, by rules of nftables of the test's own.

The rules name the ports of the process's connections, those that it opens meanwhile included. Needs root and `nft`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from enum import StrEnum

import psutil

_TABLE = f"spotwise_faults_{os.getpid()}"
#: New connections of the process are looked for so often.
_LOOK_S = 0.02


class Direction(StrEnum):
    """Whose packets are lost, of a process."""

    BOTH = "both"
    SENT = "sent"
    RECEIVED = "received"


def why_impossible() -> str | None:
    """Return why packets cannot be lost here; `None` where they can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("nft") is None:
        return "needs nft (Debian: nftables)"
    try:
        with _table():
            _nft(f"add rule inet {_TABLE} faults tcp dport 1 numgen random mod 100 < 1 drop")
    except subprocess.CalledProcessError as error:
        return f"nft: {error.stderr.strip().splitlines()[0]}"
    return None


@contextlib.contextmanager
def losing_packets(pid: int, direction: Direction, percent: int = 100) -> Iterator[None]:
    """Lose so many of a process's packets for the length of a block."""
    stopping = threading.Event()
    with _table():
        share = "" if percent == 100 else f"numgen random mod 100 < {percent} "
        if direction is not Direction.RECEIVED:
            _nft(f"add rule inet {_TABLE} faults tcp sport @ports {share}drop")
        if direction is not Direction.SENT:
            _nft(f"add rule inet {_TABLE} faults tcp dport @ports {share}drop")
        known = _name_ports(pid, set())
        follower = threading.Thread(target=_follow, args=(pid, known, stopping), daemon=True)
        follower.start()
        try:
            yield
        finally:
            stopping.set()
            follower.join()


def _follow(pid: int, known: set[int], stopping: threading.Event) -> None:
    while not stopping.wait(_LOOK_S):
        with contextlib.suppress(psutil.Error, subprocess.CalledProcessError):
            known |= _name_ports(pid, known)


def _name_ports(pid: int, known: set[int]) -> set[int]:
    """Add the ports of a process that the rules do not name yet, and return them all."""
    connections = psutil.Process(pid).net_connections("tcp")
    ports = {each.laddr.port for each in connections if each.laddr}
    if new := sorted(ports - known):
        _nft(f"add element inet {_TABLE} ports {{ {', '.join(map(str, new))} }}")
    return ports | known


@contextlib.contextmanager
def _table() -> Iterator[None]:
    _nft(f"add table inet {_TABLE}")
    try:
        _nft(f"add set inet {_TABLE} ports {{ type inet_service; }}")
        _nft(f"add chain inet {_TABLE} faults {{ type filter hook output priority 0; }}")
        yield
    finally:
        _nft(f"delete table inet {_TABLE}")


def _nft(rule: str) -> None:
    subprocess.run(["nft", rule], check=True, capture_output=True, text=True)
