"""Memory limits of single processes, by control groups of their own (version 1 or 2; their folder must be writable).

A process is limited some 20 ms after its start; what it has by then, a bare interpreter, does not count.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from spotwise.cli.errors import CommandError

_LOOK_S = 0.02
_ROOT = Path("/sys/fs/cgroup")


class MemoryLimits:
    """Puts each new descendant of this process that `is_limited`, given its command line, into a group of its own.

    Attributes:
        peak_bytes: the most memory that each of them has had, files in the page cache included; of those that are over, too.
        killed: number of them that the limit has ended.
    """

    def __init__(self, limit_bytes: int, is_limited: Callable[[str], bool]) -> None:
        self._limit_bytes = limit_bytes
        self._is_limited = is_limited
        self._version = 2 if (_ROOT / "cgroup.controllers").exists() else 1
        self._groups: dict[int, Path] = {}
        self.peak_bytes: list[int] = []
        self.killed = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Limit what starts within the block; raises `CommandError` where control groups cannot be made."""
        self._make(0).rmdir()
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), name="memory-limits", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            for group in self._groups.values():
                self._read(group)

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    if process.pid not in self._groups and self._is_limited(" ".join(process.cmdline())):
                        self._limit(process.pid)

    def _limit(self, pid: int) -> None:
        group = self._make(pid)
        self._groups[pid] = group
        (group / ("memory.limit_in_bytes" if self._version == 1 else "memory.max")).write_text(str(self._limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))

    def _make(self, number: int) -> Path:
        group = (_ROOT / "memory" if self._version == 1 else _ROOT) / f"spotwise-{os.getpid()}-{number}"
        try:
            group.mkdir()
        except OSError as error:
            raise CommandError(
                f"no control group can be made ({error}); run this as root, outside of a container"
            ) from error
        return group

    def _read(self, group: Path) -> None:
        peak = "memory.max_usage_in_bytes" if self._version == 1 else "memory.peak"
        events = "memory.oom_control" if self._version == 1 else "memory.events"
        peak_bytes = int((group / peak).read_text())
        if peak_bytes:  # else it was over before it was limited
            self.peak_bytes.append(peak_bytes)
        counts = dict(line.split() for line in (group / events).read_text().splitlines())
        self.killed += int(counts.get("oom_kill", 0)) > 0
        group.rmdir()
