"""Facts of a worker's machine: processor, free memory, and contention for its cores."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def cores_name() -> str:
    """Return the number of cores that this process may use, and the processor."""
    return f"{len(os.sched_getaffinity(0))} cores of {processor_name()}"


def machine_id() -> str:
    """Return a name that all processes of this machine, or of this container, have in common, and no others."""
    started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{started}/{Path('/proc/self/ns/pid').readlink()}"


def free_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that this process may still allocate: the machine's, or its container's."""
    free = psutil.virtual_memory().available
    try:
        limit, used = ((cgroup / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        return max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):  # no limit
        return free


@dataclass(frozen=True, slots=True)
class CoreTime:
    """CPU time of this process's threads, as Linux counts it, in seconds.

    Attributes:
        ran_s: running on a core.
        waited_s: runnable, while others had the cores; steal time of a virtual machine is not counted.
    """

    ran_s: float
    waited_s: float

    @classmethod
    def so_far(cls, threads: Path = Path("/proc/self/task")) -> Self:
        """Return the time of the live threads since their start; zero where the system does not count it."""
        ran_ns = waited_ns = 0
        for thread in threads.glob("*/schedstat"):
            try:
                ran, waited, _ = thread.read_text(encoding="ascii").split()
            except (OSError, ValueError):  # it has ended
                continue
            ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
        return cls(ran_ns / 1e9, waited_ns / 1e9)

    def waited_share_since(self, before: CoreTime) -> float:
        """Return the share of waiting in the time in which threads were runnable; 0 where none was."""
        runnable_s = (self.ran_s - before.ran_s) + (self.waited_s - before.waited_s)
        return (self.waited_s - before.waited_s) / runnable_s if runnable_s > 0.0 else 0.0
