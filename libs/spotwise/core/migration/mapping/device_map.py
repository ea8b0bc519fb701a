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
        positions: of each device that has one in the new configuration: one device for every position.
        running: requests that keep their KV, by new pipeline; the KV is where `before.running` has it.
        waiting: requests beyond the new batches' capacity, most decoded first; they wait and are computed again.
        kept_weight_bytes: weights that are on their device already.
        kept_kv_bytes: KV of `running` that is on its device already.
        running_on: new pipelines that are an old one, device for device and request for request, and need not stop,
            with the number of that old one.
    """

    before: Deployment
    config: ParallelConfig
    positions: Mapping[Device, Position]
    running: Mapping[int, tuple[RunningRequest, ...]]
    waiting: tuple[RunningRequest, ...]
    kept_weight_bytes: int
    kept_kv_bytes: int
    running_on: Mapping[int, int]
