"""CPU time and memory of a mesh's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import psutil

from spotwise.cli.mesh.running import running_state


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One sample, by service id: seconds of CPU time since the start, user and system; bytes of memory."""

    cpu_s: Mapping[str, float]
    resident_bytes: Mapping[str, int]

    @classmethod
    def of_mesh(cls, name: str) -> Self:
        """Sample a mesh's processes, embedded servers too, not the supervisor; raises `CommandError` without such a mesh."""
        cpu_s, resident_bytes = {}, {}
        for service_id, service in running_state(name).services.items():
            if service.process is None:
                continue
            try:
                process = psutil.Process(service.process.pid)
                times = process.cpu_times()
                cpu_s[service_id] = times.user + times.system
                resident_bytes[service_id] = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # it died; its streams fail
        return cls(cpu_s, resident_bytes)

    def cpu_since(self, earlier: ProcessUsage) -> dict[str, float]:
        """Return the CPU seconds used since then, by service id."""
        return {service_id: cpu_s - earlier.cpu_s.get(service_id, 0.0) for service_id, cpu_s in self.cpu_s.items()}
