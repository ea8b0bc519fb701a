"""The deployment that a migration starts from: instances, the position of each device, and the requests of each pipeline; and
the device mapper's result, which says what the new one takes over.

Law: a device is known by its instance and its number there; what it holds follows from its position (`ModelShape`).
An instance under notice (`deadline_s`) may send until then, and gets no position of a new configuration.
A device has at most one position and a position one device; positions may be empty after losses without notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spotwise.core.parallel.config import ParallelConfig, Position


class Device(NamedTuple):
    """One accelerator: its instance's id, and its number there from 0."""

    instance: str
    number: int


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine with 1 to 8 accelerators; `deadline_s`: when it is reclaimed, absolute, `None` without notice."""

    id: str
    devices: int
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= 8:
            raise ValueError(f"an instance has 1 to 8 devices, {self.id} has {self.devices}")

    @property
    def is_leaving(self) -> bool:
        """Whether it is under notice."""
        return self.deadline_s is not None

    def all_devices(self) -> tuple[Device, ...]:
        """Return its devices, by number."""
        return tuple(Device(self.id, number) for number in range(self.devices))


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request whose KV a pipeline has. `tokens`: with KV, prompt and decoded; `remaining`: to decode, known or expected."""

    id: str
    tokens: int
    decoded: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class Deployment:
    """The positions of devices; `instances` in the order in which they joined, also those without a position; `running` by the
    pipeline (of `config`) that holds the KV.
    """

    config: ParallelConfig
    instances: tuple[Instance, ...]
    positions: Mapping[Device, Position] = field(default_factory=dict)
    running: Mapping[int, tuple[RunningRequest, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {device for instance in self.instances for device in instance.all_devices()}
        if len({instance.id for instance in self.instances}) != len(self.instances):
            raise ValueError("two instances have the same id")
        if stray := [device for device in self.positions if device not in known]:
            raise ValueError(f"devices of no listed instance have a position: {stray}")
        if len(set(self.positions.values())) != len(self.positions):
            raise ValueError("a position has two devices")
        places = set(self.config.positions())
        if wrong := [place for place in self.positions.values() if place not in places]:
            raise ValueError(f"positions outside {self.config}: {wrong}")

    @classmethod
    def in_order(
        cls,
        config: ParallelConfig,
        instances: tuple[Instance, ...],
        running: Mapping[int, tuple[RunningRequest, ...]] | None = None,
    ) -> Deployment:
        """Return the deployment that fills positions in order with devices of staying instances; too few raise `ValueError`."""
        devices = [device for instance in instances if not instance.is_leaving for device in instance.all_devices()]
        if len(devices) < config.devices:
            raise ValueError(f"{config} needs {config.devices} devices; there are {len(devices)}")
        return cls(config, instances, dict(zip(devices, config.positions(), strict=False)), running or {})


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """What the new configuration takes over from the old one.

    Attributes:
        positions: position of each device that has one in the new configuration: one device for every position.
        running: requests that keep their KV, by new pipeline; the KV is where `before.running` has it.
        waiting: requests beyond the new batches' capacity, most decoded first; they wait and are recomputed.
        kept_weight_bytes, kept_kv_bytes: weights, and KV of `running`, that are on their device already.
        running_on: the old pipeline that a new one is, device for device and request for request; it need not stop.
    """

    before: Deployment
    config: ParallelConfig
    positions: Mapping[Device, Position]
    running: Mapping[int, tuple[RunningRequest, ...]]
    waiting: tuple[RunningRequest, ...]
    kept_weight_bytes: int
    kept_kv_bytes: int
    running_on: Mapping[int, int]
