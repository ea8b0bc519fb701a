"""The devices of a change by number, for fast planning.

Law: instances are numbered in the order in which they joined, devices by instance and index; mappings' order does not count.
A device whose instance has passed its deadline holds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spotwise.core.migration.deployment import Device
from spotwise.core.migration.mapping.device_map import DeviceMap
from spotwise.core.parallel.config import Position


class NumberedDevices:
    """All devices, by number; a device with a position whose instance is not listed raises `ValueError`.

    Attributes:
        instance_of: the number of each device's instance.
        left_s: seconds for which each instance under notice can still send.
        before, after: the device that still holds each position's data, and the device that gets it.
    """

    def __init__(self, device_map: DeviceMap, now_s: float) -> None:
        listed = device_map.before.instances
        self.devices = [device for instance in listed for device in instance.all_devices()]
        self.instances = [instance.id for instance in listed]
        self.instance_of = [number for number, instance in enumerate(listed) for _ in range(instance.devices)]
        self.left_s = {
            number: max(0.0, instance.deadline_s - now_s)
            for number, instance in enumerate(listed)
            if instance.deadline_s is not None
        }
        self._numbers = {device: number for number, device in enumerate(self.devices)}
        self.after = self._by_position(device_map.positions)
        self.before = {
            position: device
            for position, device in self._by_position(device_map.before.positions).items()
            if self.left_s.get(self.instance_of[device], 1.0) > 0
        }

    def is_leaving(self, device: int) -> bool:
        """Whether a device's instance is under notice."""
        return self.instance_of[device] in self.left_s

    def sends_until_s(self, source: int | None) -> float:
        """Return until when a source can send, from now: infinite for storage and devices that stay."""
        return math.inf if source is None else self.left_s.get(self.instance_of[source], math.inf)

    def _by_position(self, positions: Mapping[Device, Position]) -> dict[Position, int]:
        if strangers := [device for device in positions if device not in self._numbers]:
            raise ValueError(f"{strangers[0]} has a position; list its instance in `before.instances`")
        return {position: self._numbers[device] for device, position in positions.items()}
