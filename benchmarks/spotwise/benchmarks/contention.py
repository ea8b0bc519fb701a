"""Detects other use of a machine's cores while a mesh was measured on it: other processes, a hypervisor, or a quota."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

#: Shares of the cores' time from which on figures are marked. What a kernel does for a mesh (timers, loopback) is below.
_OTHERS_SHARE, _STOLEN_SHARE, _THROTTLED_SHARE = 0.05, 0.02, 0.02
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CoreUse:
    """CPU time so far, seconds, of the cores that this process may use.

    Attributes:
        at_s: on the monotonic clock.
        busy_s: CPU time of all processes.
        stolen_s: taken by a hypervisor for other machines.
        throttled_s: in which this control group's quota was used up.
        own_s: CPU time of this command's processes, by process id and start; with their ended children.
    """

    at_s: float
    cores: int
    busy_s: float
    stolen_s: float
    throttled_s: float
    own_s: Mapping[tuple[int, float], float]

    @classmethod
    def so_far(cls, root: psutil.Process | None = None, cgroup: Path = _CGROUP) -> Self:
        """Sample the cores; `root` and its descendants are this command's processes, by default this one and its own."""
        allowed = os.sched_getaffinity(0)
        times = [each for number, each in enumerate(psutil.cpu_times(percpu=True)) if number in allowed]
        busy_s = sum(each.user + each.nice + each.system + each.irq + each.softirq for each in times)
        own = psutil.Process() if root is None else root
        own_s = {}
        for process in (own, *own.children(recursive=True)):
            try:
                own_s[process.pid, process.create_time()] = sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue  # its parent has its time
        stolen_s = sum(each.steal for each in times)
        return cls(time.monotonic(), len(times), busy_s, stolen_s, _throttled_s(cgroup), own_s)

    def contention_since(self, before: CoreUse) -> Contention:
        """Return what others took since an earlier sample."""
        core_s = max(self.at_s - before.at_s, 1e-9) * max(self.cores, 1)
        others_s = max(0.0, self.busy_s - before.busy_s - self._own_s_since(before))
        return Contention(
            self.cores,
            others_s / core_s,
            (self.stolen_s - before.stolen_s) / core_s,
            (self.throttled_s - before.throttled_s) / core_s,
        )

    def own_cores_since(self, before: CoreUse) -> float:
        """Return how many cores this command's processes kept busy since an earlier sample, on average."""
        return self._own_s_since(before) / max(self.at_s - before.at_s, 1e-9)

    def _own_s_since(self, before: CoreUse) -> float:
        return sum(max(0.0, seconds - before.own_s.get(process, 0.0)) for process, seconds in self.own_s.items())


@dataclass(frozen=True, slots=True)
class Contention:
    """What others took of the cores' time, as shares of it, 0 to 1; see `CoreUse`."""

    cores: int
    others_share: float
    stolen_share: float
    throttled_share: float

    @property
    def disturbs(self) -> bool:
        """Whether figures measured meanwhile are not the mesh's alone."""
        shares = (self.others_share, self.stolen_share, self.throttled_share)
        return any(
            share >= most for share, most in zip(shares, (_OTHERS_SHARE, _STOLEN_SHARE, _THROTTLED_SHARE), strict=True)
        )


def contention_lines(contentions: Mapping[str, Contention]) -> list[str]:
    """Return a sentence on each of these parts of a measurement that others disturbed."""
    lines = []
    for part, each in contentions.items():
        if each.disturbs:
            shares = f"other processes took {each.others_share:.0%} of the {each.cores} cores' time"
            shares += f", a hypervisor {each.stolen_share:.0%}" if each.stolen_share >= _STOLEN_SHARE else ""
            shares += f", a quota {each.throttled_share:.0%}" if each.throttled_share >= _THROTTLED_SHARE else ""
            lines.append(f"{part}: {shares}. Its figures are not the mesh's alone; measure again on a quiet machine.")
    return lines


def _throttled_s(cgroup: Path) -> float:
    try:
        lines = (cgroup / "cpu.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("throttled_usec ")) / 1e6
