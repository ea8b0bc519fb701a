"""The answer of the device mapper: who gets which position of a new configuration, and who goes on where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotwise.core.migration.deployment import Deployment, Device, RunningRequest
from spotwise.core.parallel.config import ParallelConfig, Position


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """What the new configuration takes over from the old one.

    Attributes:
        before: what stood.
        config: the new configuration.
        positions: of each device that has one in it: as many as the configuration has.
        running: requests whose KV goes on, by new pipeline; their KV is where `before.running` has them.
        waiting: requests for which the new configuration has no place in its batches, who has decoded most first; they wait
            and are computed again.
        kept_weight_bytes: weights that are on their device already.
        kept_kv_bytes: KV that goes on and is on its device already.
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
