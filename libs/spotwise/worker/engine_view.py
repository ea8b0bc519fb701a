"""Engine control's view of a process of workers."""

from __future__ import annotations

from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.worker.runtime import WorkerRuntime


class RuntimeView:
    """An `EngineView` over the runtimes of a process by member id; a member without one still loads, or has left."""

    def __init__(self) -> None:
        self._runtimes: dict[str, WorkerRuntime] = {}

    def add(self, member_id: str, runtime: WorkerRuntime) -> None:
        """Add a worker."""
        self._runtimes[member_id] = runtime

    def remove(self, member_id: str) -> None:
        """Remove a worker; idempotent."""
        self._runtimes.pop(member_id, None)

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker."""
        runtime = self._find(member_id)
        return None if runtime is None else runtime.description()

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations after number `after`."""
        runtime = self._find(member_id)
        return None if runtime is None else runtime.times.since(after)

    def _find(self, member_id: str) -> WorkerRuntime | None:
        return self._runtimes.get(member_id) if member_id else next(iter(self._runtimes.values()), None)
