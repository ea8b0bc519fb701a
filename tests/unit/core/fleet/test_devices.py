"""Which instance a device is on follows from its name."""

from __future__ import annotations

import pytest

from spotwise.core.fleet.devices import instance_of

INSTANCES = {"i-1", "i-12", "local-4d52", "local"}


@pytest.mark.parametrize(
    ("device", "instance"),
    [
        ("i-1", "i-1"),
        ("i-1-0", "i-1"),
        ("i-1-device-3", "i-1"),
        ("i-12", "i-12"),
        ("i-12-0", "i-12"),
        ("i-2", None),
        ("i-123", None),
        ("i", None),
        ("local-4d52-1", "local-4d52"),
        ("local-4d53-1", "local"),
        ("mixed-0-device-0", None),
        ("", None),
    ],
)
def test_a_device_is_named_after_its_instance(device: str, instance: str | None) -> None:
    assert instance_of(device, INSTANCES) == instance
