"""Divides a machine's cores among the processes of workers that compute.

On a machine with several NUMA nodes a process gets the cores of one node, or of several where there are fewer processes; its
threads are one a physical core, and each keeps to its own. Processes of one node, as those of a machine with one, share its
cores. The native kernels' threads sleep while they wait, so a process has twice its share of them and uses an idle partner's
cores; they keep to no single core. Without these kernels OpenMP's threads compute, and two teams on the same cores spin against
one another: a process then gets its share of threads and, where there is a core for each, cores of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from spotwise.cli.launch.options import MeshOptions
from spotwise.engine.native.build import NoKernelsError, ensure_library
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.topology import Node, Topology, by_core

#: Of drivers of GPUs that torch computes on; which are there before torch is imported.
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
#: A node with a smaller share of the largest one's cores gets no process: what is left of it by an affinity mask.
_SMALLEST_SHARE = 1 / 2


def computing_nodes(device: str, topology: Topology, *, has_gpu: bool) -> tuple[Node, ...]:
    """Return the nodes among which processes are divided; empty where there are not several, or a GPU computes."""
    if device.startswith("cuda") or (device == "auto" and has_gpu):
        return ()
    most = max(len(node.cores) for node in topology.nodes)
    nodes = tuple(node for node in topology.nodes if len(node.cores) >= _SMALLEST_SHARE * most)
    return nodes if len(nodes) > 1 else ()


def nodes_here(device: str) -> tuple[Node, ...]:
    """Return those of this machine."""
    return computing_nodes(device, Topology.read(), has_gpu=_has_gpu())


def _has_gpu() -> bool:
    return any(path.exists() for path in _GPUS)


@dataclass(frozen=True, slots=True)
class LocalHost:
    """The machine's resources.

    Attributes:
        topology: its cores, as far as they are usable.
        native_kernels: it has the native kernels.
        has_gpu: torch may find a GPU.
        free_bytes: memory that processes may take.
    """

    topology: Topology
    native_kernels: bool
    has_gpu: bool = False
    free_bytes: int = 0

    @classmethod
    def this(cls) -> Self:
        """Inspect the machine this process runs on; compiles missing kernels."""
        try:
            ensure_library()
            native_kernels = True
        except NoKernelsError:
            native_kernels = False
        return cls(Topology.read(), native_kernels, _has_gpu(), free_memory_bytes())

    @property
    def num_cores(self) -> int:
        """CPUs that processes may keep busy."""
        return _busy([(cpu,) for cpu in self.topology.cpus], self.topology)


@dataclass(frozen=True, slots=True)
class CoreShare:
    """What one process gets.

    Attributes:
        threads: threads that compute.
        cores: CPUs that it keeps to; empty: it may use all.
        is_own: no other process computes on its share.
        is_pinned: each thread keeps to one of these CPUs, in their order.
        nodes: the NUMA nodes of these; empty where the machine is not divided by node.
    """

    threads: int
    cores: tuple[int, ...] = ()
    is_own: bool = False
    is_pinned: bool = False
    nodes: tuple[Node, ...] = ()


def threads_of(options: MeshOptions, processes: int, machine: LocalHost) -> int:
    """Return the threads of each of so many processes that share the machine."""
    return options.threads or _threads(options, machine, machine.num_cores, processes)


def core_shares(options: MeshOptions, processes: int, machine: LocalHost) -> list[CoreShare]:
    """Divide the machine among so many processes: by node, in order, where it has several."""
    nodes = computing_nodes(options.device, machine.topology, has_gpu=machine.has_gpu)
    if not nodes:
        return _divided(options, processes, machine, [(cpu,) for cpu in machine.topology.cpus])
    if processes <= len(nodes):
        parts = [(nodes[run.start : run.stop], 1) for run in _runs(len(nodes), processes)]
    else:
        parts = [((node,), len(run)) for node, run in zip(nodes, _runs(processes, len(nodes)), strict=True)]
    return [share for own, count in parts for share in _of_nodes(options, count, machine, own)]


def _runs(length: int, parts: int) -> list[range]:
    """Cut a row of this length into parts that differ by one at most."""
    bounds = [index * length // parts for index in range(parts + 1)]
    return [range(first, end) for first, end in itertools.pairwise(bounds)]


def _of_nodes(options: MeshOptions, processes: int, machine: LocalHost, nodes: tuple[Node, ...]) -> list[CoreShare]:
    """Divide the physical cores of some nodes; processes that share them keep to these nodes all the same."""
    cores = [core for node in nodes for core in node.cores]
    pins = _sleeps(options, machine)  # a core for each thread of the kernels; OpenMP has settings of its own
    return [
        replace(share, cores=share.cores or by_core(cores), is_pinned=share.is_own and pins, nodes=nodes)
        for share in _divided(options, processes, machine, cores)
    ]


def _divided(
    options: MeshOptions, processes: int, machine: LocalHost, cores: Sequence[tuple[int, ...]]
) -> list[CoreShare]:
    """Divide cores equally: processes have theirs to themselves where each finds a CPU for every thread."""
    share = len(cores) // processes if processes else 0
    shares = []
    for index in range(processes):
        own = by_core(cores[index * share : (index + 1) * share])
        threads = options.threads or _threads(options, machine, _busy(cores, machine.topology), processes)
        # Pinned to fewer cores than it has threads, a worker would spin against itself. Time that is limited is that of cores
        # which others use as well.
        is_own = len(own) >= threads and machine.topology.core_time is None
        shares.append(CoreShare(threads, own if is_own else (), is_own))
    return shares


def _threads(options: MeshOptions, machine: LocalHost, cores: int, processes: int) -> int:
    share = max(1, cores // processes)
    return min(2 * share, cores) if _sleeps(options, machine) else share


def _busy(cores: Sequence[tuple[int, ...]], topology: Topology) -> int:
    """Return how many of some cores their part of the time that is granted keeps busy."""
    if topology.core_time is None:
        return len(cores)
    return min(len(cores), math.ceil(topology.core_time * sum(map(len, cores)) / len(topology.cpus)))


def _sleeps(options: MeshOptions, machine: LocalHost) -> bool:
    return machine.native_kernels and options.device in ("auto", "cpu") and options.dtype != "float16"
