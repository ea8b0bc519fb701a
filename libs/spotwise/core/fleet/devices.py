"""Devices of instances: they are named after their instance, `INSTANCE` or `INSTANCE-SUFFIX`."""

from __future__ import annotations

from collections.abc import Container


def instance_of(device_id: str, instance_ids: Container[str]) -> str | None:
    """Return the instance that a device, or a worker of one process, is on; `None`: on none of these."""
    name = device_id
    while name:
        if name in instance_ids:
            return name
        name = name.rpartition("-")[0]
    return None
