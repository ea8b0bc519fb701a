"""The processors of this machine, as this process may use them: NUMA nodes, physical cores, and a limit of core time.

The kernel describes them below `/sys/devices/system`; control groups (both versions) limit what a container gets.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: CPU numbers, and ranges of them, as the kernel writes them: `0-3,8`.
CPU_LIST = r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$"
#: A longer range is a mistake, not a machine: Linux knows 8,192 CPUs at most.
_MOST_CPUS = 1 << 16
_SYSTEM, _PROCESS = Path("/sys"), Path("/proc/self")
_KIB = 1024


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the numbers of a list like `0-3,8`, in its order; raises `ValueError` where it is none, or names one twice."""
    if not re.fullmatch(CPU_LIST, text):
        raise ValueError(f"{text!r} is no list of CPUs; write for instance 0-3,8")
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, last = int(part.partition("-")[0]), int(part.rpartition("-")[2])
        if last < first or last >= _MOST_CPUS:
            raise ValueError(f"{part!r} is no range of CPUs; write for instance 0-3")
        numbers += range(first, last + 1)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{text!r} names a CPU twice")
    return tuple(numbers)


def format_cpus(numbers: Iterable[int]) -> str:
    """Return numbers as a list like `0-3,8`, in their order."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def by_core(cores: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the CPUs of physical cores: the first of each, in the cores' order, before their siblings."""
    rest = list(cores)
    numbers: list[int] = []
    while rest:
        numbers += (core[0] for core in rest)
        rest = [core[1:] for core in rest if core[1:]]
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node with CPUs that the process may use.

    Attributes:
        number: the kernel's number of it.
        cores: the usable CPUs of each physical core, all ascending.
        free_bytes: its memory that is free, or holds files that can be read again; 0 without memory of its own.
    """

    number: int
    cores: tuple[tuple[int, ...], ...]
    free_bytes: int = 0

    @property
    def cpus(self) -> tuple[int, ...]:
        """Its usable CPUs, as `by_core` orders them."""
        return by_core(self.cores)


@dataclass(frozen=True, slots=True)
class Topology:
    """What the process may use.

    Attributes:
        nodes: nodes with usable CPUs, by number; one, where the kernel tells nothing of nodes.
        memory_nodes: numbers of the machine's nodes with memory, also of those without usable CPUs.
        core_time: cores' worth of time that control groups grant, fewer than the usable CPUs; `None`: all of them.
    """

    nodes: tuple[Node, ...]
    memory_nodes: tuple[int, ...] = ()
    core_time: float | None = None

    @classmethod
    def read(cls, allowed: Iterable[int] | None = None, system: Path = _SYSTEM, process: Path = _PROCESS) -> Self:
        """Read the topology.

        Args:
            allowed: CPUs that the process may use; by default those of its affinity mask.
            system: the folder `/sys`.
            process: the process's folder below `/proc`.
        """
        usable = set(os.sched_getaffinity(0) if allowed is None else allowed)
        online = _cpus_of(system / "devices/system/cpu/online")
        usable = usable & online or usable
        nodes = tuple(_nodes(system / "devices/system", usable))
        if {cpu for node in nodes for cpu in node.cpus} != usable:  # a kernel, or a sandbox, that tells no nodes
            nodes = (Node(0, _cores(system / "devices/system/cpu", usable)),)
        core_time = min(_quotas(system / "fs/cgroup", process), default=math.inf)
        memory_nodes = tuple(sorted(_cpus_of(system / "devices/system/node/has_memory")))
        return cls(nodes, memory_nodes, core_time if core_time < len(usable) else None)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The usable CPUs, ascending."""
        return tuple(sorted(cpu for node in self.nodes for cpu in node.cpus))

    def nodes_of(self, cpus: Iterable[int]) -> tuple[Node, ...]:
        """Return the nodes that have some of these CPUs."""
        wanted = set(cpus)
        return tuple(node for node in self.nodes if wanted.intersection(node.cpus))


def _nodes(devices: Path, usable: set[int]) -> Iterator[Node]:
    """Find the nodes with usable CPUs: one that is memory alone has none."""
    numbers = sorted(
        int(found[1]) for folder in devices.glob("node/node*") if (found := re.search(r"(\d+)$", folder.name))
    )
    for number in numbers:
        folder = devices / f"node/node{number}"
        if own := usable & _cpus_of(folder / "cpulist"):
            yield Node(number, _cores(devices / "cpu", own), _free_bytes(folder / "meminfo"))


def _cores(cpus: Path, usable: set[int]) -> tuple[tuple[int, ...], ...]:
    """Group CPUs by physical core; one that the kernel tells nothing of is a core."""
    cores = {
        tuple(sorted(usable & (_cpus_of(cpus / f"cpu{cpu}/topology/thread_siblings_list") | {cpu}))) for cpu in usable
    }
    return tuple(sorted(cores))


def _cpus_of(path: Path) -> set[int]:
    try:
        return set(parse_cpus(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        return set()


def _free_bytes(path: Path) -> int:
    try:
        found = re.findall(r"(MemFree|Active\(file\)|Inactive\(file\)):\s*(\d+) kB", path.read_text(encoding="ascii"))
    except OSError:
        return 0
    return sum(int(amount) for _, amount in found) * _KIB


def _quotas(groups: Path, process: Path) -> Iterator[float]:
    """Find the cores' worth of time of the process's control groups, and of those around them."""
    try:
        lines = (process / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    own = {"": "/"} | {controller: path for line in lines for controller, path in _hierarchies(line)}
    for root, path in ((groups, own[""]), (groups / "cpu", own.get("cpu", "/"))):
        inside = Path(path.lstrip("/"))
        for folder in (root / part for part in (inside, *inside.parents)):
            if (quota := _quota(folder)) is not None:
                yield quota


def _hierarchies(line: str) -> Iterator[tuple[str, str]]:
    """Read a line of a process's control groups: `number:controllers:path`."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    yield from ((controller, path) for controller in controllers.split(","))


def _quota(group: Path) -> float | None:
    """Return a control group's time over its period; `None` without a limit."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
            if float(quota) > 0 and float(period) > 0:
                return float(quota) / float(period)
        except (OSError, ValueError):  # not of this version, or without a limit: `max`
            continue
    return None
