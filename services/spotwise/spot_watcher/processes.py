"""Watches the processes of this machine's members by pidfd, which reports their end at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from spotwise.core.messages.members import Member, MemberState

#: A member's incarnation, the clock at its start in ms, is at most so much later than its process' start.
_START_S = 300.0
#: Accuracy of the clock of process starts.
_EXACT_TO_S = 1.0


@dataclass(slots=True)
class _Process:
    pidfd: int
    members: dict[tuple[str, int], Member] = field(default_factory=dict)


class LocalProcesses:
    """Watches processes of this host by their pidfds.

    Args:
        host: this machine, as its members name it.
        own_id: the member that watches.
        ended: called for each member whose process has ended.
    """

    def __init__(self, host: str, own_id: str, ended: Callable[[Member], None]) -> None:
        self._host = host
        self._own_id = own_id
        self._ended = ended
        self._processes: dict[int, _Process] = {}

    def observe(self, member: Member) -> None:
        """Watch the process of a member from its first heartbeat on, if it runs on this machine."""
        if member.host != self._host or member.id == self._own_id:
            return
        process = self._processes.get(member.pid)
        if member.state in (MemberState.LEFT, MemberState.LOST):
            if process is not None:
                process.members.pop((member.id, member.incarnation), None)
            return
        if process is None:
            pidfd = _open(member)
            if pidfd is None:
                return
            process = self._processes[member.pid] = _Process(pidfd)
            asyncio.get_running_loop().add_reader(pidfd, self._has_ended, member.pid)
        process.members[member.id, member.incarnation] = member

    def close(self) -> None:
        """Stop watching."""
        for pid in list(self._processes):
            self._forget(pid)

    def _has_ended(self, pid: int) -> None:
        for member in self._forget(pid).members.values():
            self._ended(member)

    def _forget(self, pid: int) -> _Process:
        process = self._processes.pop(pid)
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        return process


def _open(member: Member) -> int | None:
    """Return a pidfd of the member's process; `None` where the pid is another process's, as it may be in containers."""
    try:
        pidfd = os.pidfd_open(member.pid)
    except OSError:
        return None
    try:
        started_s = psutil.Process(member.pid).create_time()
    except psutil.Error:
        started_s = 0.0
    if -_EXACT_TO_S <= member.incarnation / 1000 - started_s <= _START_S:
        return pidfd
    os.close(pidfd)
    return None
