"""The device mapper's result: the device of each position, and the pipeline of each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.migration.deployment import Deployment, Device, RunningRequest
from spotwise.core.parallel.config import ParallelConfig, Position


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
