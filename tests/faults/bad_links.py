"""Loses packets of one process on loopback, in one direction or both, or lets them queue before a narrow link.

Rules of nftables, the test's own, name the ports of the process's connections, those that it opens meanwhile included. A narrow
link is a class of a queueing discipline, for packets with its priority. Needs root, `nft` and `tc`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import psutil

#: New connections of the process are looked for so often.
_LOOK_S = 0.02
_CLASS = "1:10"
#: Of the narrow link; a small packet of TCP takes some 15 ms, and some 600 ms where the queue is full.
_RATE, _QUEUED_PACKETS = "64kbit", 40


@dataclass(slots=True)
class _NarrowLink:
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


_LINK = _NarrowLink()


class Direction(StrEnum):
    """Whose packets are lost, of a process."""

    BOTH = "both"
    SENT = "sent"
    RECEIVED = "received"


def why_impossible() -> str | None:
    """Return why links cannot be bad here; `None` where they can."""
    if os.geteuid() != 0:
        return "needs root"
    for program, package in (("nft", "nftables"), ("tc", "iproute2")):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: {package})"
    try:
        with _narrow_link(), _table(0) as table:
            _nft(f"add rule inet {table} faults tcp dport 1 numgen random mod 100 < 1 drop")
    except subprocess.CalledProcessError as error:
        return f"{error.cmd[0]}: {error.stderr.strip().splitlines()[0]}"
    return None


@contextlib.contextmanager
def losing_packets(pid: int, direction: Direction, percent: int = 100) -> Iterator[None]:
    """Lose so many of a process's packets for the length of a block."""
    share = "" if percent == 100 else f"numgen random mod 100 < {percent} "
    with _ruled(pid, direction, f"{share}drop"):
        yield


@contextlib.contextmanager
def on_narrow_link(pid: int) -> Iterator[None]:
    """Let all of a process's packets, sent and received, queue before one narrow link for the length of a block; a full queue
    drops packets.
    """
    with _narrow_link(), _ruled(pid, Direction.BOTH, f"meta priority set {_CLASS}"):
        yield


@contextlib.contextmanager
def _ruled(pid: int, direction: Direction, verdict: str) -> Iterator[None]:
    """Do something with the packets of a process for the length of a block."""
    stopping = threading.Event()
    with _table(pid) as table:
        if direction is not Direction.RECEIVED:
            _nft(f"add rule inet {table} faults tcp sport @ports {verdict}")
        if direction is not Direction.SENT:
            _nft(f"add rule inet {table} faults tcp dport @ports {verdict}")
        known = _name_ports(table, pid, set())
        follower = threading.Thread(target=_follow, args=(table, pid, known, stopping), daemon=True)
        follower.start()
        try:
            yield
        finally:
            stopping.set()
            follower.join()


def _follow(table: str, pid: int, known: set[int], stopping: threading.Event) -> None:
    while not stopping.wait(_LOOK_S):
        with contextlib.suppress(psutil.Error, subprocess.CalledProcessError):
            known |= _name_ports(table, pid, known)


def _name_ports(table: str, pid: int, known: set[int]) -> set[int]:
    """Add the ports of a process that the rules do not name yet, and return them all."""
    connections = psutil.Process(pid).net_connections("tcp")
    ports = {each.laddr.port for each in connections if each.laddr}
    if new := sorted(ports - known):
        _nft(f"add element inet {table} ports {{ {', '.join(map(str, new))} }}")
    return ports | known


@contextlib.contextmanager
def _table(pid: int) -> Iterator[str]:
    """A table for the rules of one process."""
    name = f"spotwise_faults_{os.getpid()}_{pid}"
    _nft(f"add table inet {name}")
    try:
        _nft(f"add set inet {name} ports {{ type inet_service; }}")
        _nft(f"add chain inet {name} faults {{ type filter hook output priority 0; }}")
        yield name
    finally:
        _nft(f"delete table inet {name}")


@contextlib.contextmanager
def _narrow_link() -> Iterator[None]:
    """One for all that are on it at once; packets of another priority pass by."""
    with _LINK.lock:
        if not _LINK.users:
            _tc("qdisc add dev lo root handle 1: htb")
        _LINK.users += 1
    try:
        with _LINK.lock:
            _tc(f"class replace dev lo parent 1: classid {_CLASS} htb rate {_RATE} burst 1600")
            _tc(f"qdisc replace dev lo parent {_CLASS} pfifo limit {_QUEUED_PACKETS}")
        yield
    finally:
        with _LINK.lock:
            _LINK.users -= 1
            if not _LINK.users:
                _tc("qdisc delete dev lo root")


def _tc(change: str) -> None:
    subprocess.run(["tc", *change.split()], check=True, capture_output=True, text=True)


def _nft(rule: str) -> None:
    subprocess.run(["nft", rule], check=True, capture_output=True, text=True)
