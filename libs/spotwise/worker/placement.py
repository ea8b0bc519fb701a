"""Puts a worker's process on its cores, and its memory beside them.

The process's threads run on the cores of `SPOTWISE_CORES`. Where the machine has several NUMA nodes, memory that the process
writes first comes from the node of its cores; one with cores of several nodes computes with weights on all of them, and gets
its pages from each in turn. With `SPOTWISE_PIN_THREADS` each compute thread keeps to one core (`engine_thread`); other threads
share all of the process's cores, which is why threads that the engine's starts leave its core (`leave_core`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Collection
from pathlib import Path

import structlog

from spotwise.core.messages.members import ProcessCores
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.topology import Topology, format_cpus

_log = structlog.get_logger(__name__)

#: set_mempolicy(2); glibc has no function for it, and a library of its own (libnuma) is not everywhere.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
#: Other nodes' memory follows when that of the node is full: with MPOL_BIND the process would be killed.
_MPOL_PREFERRED, _MPOL_INTERLEAVE = 1, 3
_BITS = 64


def place_process(settings: WorkerSettings) -> ProcessCores:
    """Move all threads of this process to its cores, and bind the memory that it takes from now on; return what it got.

    Before threads start that compute: they inherit both from the thread that starts them.
    """
    if settings.core_ids:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), settings.core_ids)
    topology = Topology.read()
    nodes = tuple(node.number for node in topology.nodes)
    if settings.device in ("auto", "cpu") and len(topology.memory_nodes) > 1:
        bind_memory([node for node in nodes if node in topology.memory_nodes])
    return ProcessCores(nodes, format_cpus(topology.cpus), settings.threads, settings.pin_threads)


def bind_memory(nodes: Collection[int]) -> None:
    """Take this thread's memory, and that of threads that it starts, from one node; of several, page by page in turn. A refusal
    is logged: the kernel then prefers the node of the core that writes a page first.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if not nodes or number is None:
        return
    mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_INTERLEAVE
    words = max(nodes) // _BITS + 1
    mask = (ctypes.c_uint64 * words)()
    for node in nodes:
        mask[node // _BITS] |= 1 << node % _BITS
    system = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told of.
    if system.syscall(ctypes.c_long(number), ctypes.c_int(mode), mask, ctypes.c_ulong(words * _BITS + 1)) != 0:
        reason = os.strerror(ctypes.get_errno())
        _log.warning("memory_not_bound", nodes=format_cpus(sorted(nodes)), reason=reason)
