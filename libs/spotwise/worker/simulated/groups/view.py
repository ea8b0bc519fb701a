"""Engine control's view of a process of simulated devices: the workers that they lead, and the devices."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.worker.engine_view import RuntimeView
from spotwise.worker.groups.process import DeviceProcess


class SimulatedDevicesView:
    """An `EngineView` of the devices of a process, by id, and of the workers that they lead."""

    def __init__(self, devices: Mapping[str, DeviceProcess], workers: RuntimeView) -> None:
        self._devices = devices
        self._workers = workers

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker or a device."""
        device = self._devices.get(member_id)
        if device is None:
            return self._workers.describe(member_id)
        return EngineDescription(
            member=device.host.member,
            engine_sequences=0,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=0,
            engine="simulated",
            kv_bytes_per_token=0,
            times=None,
        )

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations; a device has none of its own."""
        return RecentIterations(0, ()) if member_id in self._devices else self._workers.iterations(member_id, after)
