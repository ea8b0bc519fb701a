"""Engine control's view of a process of groups: the workers that it leads, and its device, with what that computes."""

from __future__ import annotations

import psutil

from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.worker.engine_view import RuntimeView
from spotwise.worker.groups.device_parts import DeviceParts
from spotwise.worker.groups.process import DeviceProcess


class ProcessView:
    """An `EngineView` of one process.

    Args:
        device_id: id of its device.
        workers: workers that it leads.
    """

    def __init__(self, device_id: str, workers: RuntimeView) -> None:
        self._device_id = device_id
        self._workers = workers
        self._process: DeviceProcess | None = None
        self._parts: DeviceParts | None = None

    def show(self, process: DeviceProcess, parts: DeviceParts) -> None:
        """Describe the device by its process, and by its part in the newest group, from now on."""
        self._process, self._parts = process, parts

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker or the device; the device's iterations are its leader's."""
        if member_id != self._device_id:
            return self._workers.describe(member_id)
        if self._process is None or self._parts is None:
            return None
        part = self._parts.part(self._process.newest_leader)
        engine = None if part is None else part.loaded
        return EngineDescription(
            member=self._process.host.member,
            engine_sequences=0 if engine is None else engine.num_sequences,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=0,
            engine="nothing loaded" if engine is None else engine.computes_with,
            kv_bytes_per_token=0 if engine is None else engine.kv_bytes_per_token,
            times=None if part is None else part.times(),
        )

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations; a device has none of its own: the leader measures the group's."""
        if member_id == self._device_id:
            return RecentIterations(0, ())
        return self._workers.iterations(member_id, after)
