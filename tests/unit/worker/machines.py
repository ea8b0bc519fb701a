"""Machines as the kernel describes them: folders like `/sys` and `/proc/self`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spotwise.worker.topology import Topology, format_cpus, parse_cpus

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def write_machine(
    folder: Path,
    nodes: Mapping[int, str],
    siblings: Sequence[str] = (),
    *,
    online: str | None = None,
    free_gib: Mapping[int, int] | None = None,
) -> Path:
    """Write `/sys` of a machine; return it.

    Args:
        nodes: CPUs of each node, as a list; empty of a node that is memory alone.
        siblings: CPUs of each physical core, as lists; a CPU in none of them is a core.
        online: CPUs that are online; by default all.
        free_gib: free memory of each node; 0: it has none. By default 32 GiB.
    """
    devices = folder / "sys/devices/system"
    cpus = [cpu for listed in nodes.values() for cpu in parse_cpus(listed)]
    core_of = {cpu: listed for listed in siblings for cpu in parse_cpus(listed)}
    for cpu in cpus:
        write(devices / f"cpu/cpu{cpu}/topology/thread_siblings_list", core_of.get(cpu, str(cpu)))
    write(devices / "cpu/online", format_cpus(sorted(cpus)) if online is None else online)
    free = dict.fromkeys(nodes, 32) | dict(free_gib or {})
    for number, listed in nodes.items():
        write(devices / f"node/node{number}/cpulist", listed)
        lines = [f"MemTotal: {free[number] << 21} kB", f"MemFree: {free[number] << 19} kB"]
        lines += [f"Active(file): {free[number] << 18} kB", f"Inactive(file): {free[number] << 18} kB"]
        write(devices / f"node/node{number}/meminfo", "\n".join(f"Node {number} {line}" for line in lines))
    write(devices / "node/has_memory", format_cpus(number for number in nodes if free[number]))
    return folder / "sys"


def read_machine(folder: Path, allowed: str | None = None) -> Topology:
    """Read what `write_machine` wrote; `allowed`: the affinity mask, by default all that are online."""
    online = (folder / "sys/devices/system/cpu/online").read_text().strip()
    return Topology.read(parse_cpus(online if allowed is None else allowed), folder / "sys", folder / "proc")
