"""Whether a process's memory goes on growing, by samples over its life."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

#: A process has what it needs after so long.
_SETTLED_S = 300.0
#: Samples of a third of its life, at least, to tell.
_ENOUGH = 10
#: The last third of a life above the first by more than this share, and more than so many bytes, is a leak.
_GROWTH, _GROWTH_BYTES = 0.1, 16 << 20


@dataclass(slots=True)
class _Life:
    service_id: str
    began_s: float
    resident_bytes: list[int] = field(default_factory=list)

    def thirds(self) -> tuple[float, float] | None:
        """Return the median of the first and of the last third; `None` where it did not live for long enough."""
        third = len(self.resident_bytes) // 3
        if third < _ENOUGH:
            return None
        return statistics.median(self.resident_bytes[:third]), statistics.median(self.resident_bytes[-third:])


class MemoryGrowth:
    """Resident bytes of the processes of a mesh."""

    def __init__(self) -> None:
        self._lives: dict[int, _Life] = {}

    def measure(self, service_id: str, pid: int, now_s: float) -> None:
        """Take a sample of a process that runs."""
        life = self._lives.setdefault(pid, _Life(service_id, now_s))
        if now_s - life.began_s >= _SETTLED_S:
            with contextlib.suppress(psutil.Error):
                life.resident_bytes.append(psutil.Process(pid).memory_info().rss)

    def leaks(self) -> Sequence[str]:
        """Return the services whose memory grew."""
        grown = []
        for life in self._lives.values():
            thirds = life.thirds()
            if thirds is not None and thirds[1] - thirds[0] > max(_GROWTH * thirds[0], _GROWTH_BYTES):
                grown.append(life.service_id)
        return grown

    def lines(self) -> Sequence[str]:
        """Return a line for each process that lived for long enough to tell."""
        return [
            f"{life.service_id}: {thirds[0] / (1 << 20):.1f} MiB, then {thirds[1] / (1 << 20):.1f} MiB"
            for life in self._lives.values()
            if (thirds := life.thirds()) is not None
        ]
