"""The types of instances that a mesh may have, as its fleet file lists them."""

from __future__ import annotations

from dataclasses import dataclass

from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.measured import MeasuredType

#: Between two instances, where neither the file nor the profile says: 10 Gbit/s.
USUAL_NETWORK_BYTES_PER_S = 1.25e9
#: Between two devices of an instance: PCIe 4.0 with 16 lanes, in practice.
USUAL_LOCAL_BYTES_PER_S = 10e9


@dataclass(frozen=True, slots=True)
class FleetType:
    """A type of instance.

    Attributes:
        devices, memory_bytes: of an instance; of each for weights and KV, `None` as the profiled worker had.
        start_s: from its launch until it is ready, as a rule.
        profile: of a worker on one of its devices.
        local_bytes_per_s, network_bytes_per_s: within an instance; between two, `None` for the profile's link.
    """

    name: str
    devices: int
    memory_bytes: int | None
    start_s: float
    profile: CostProfile
    local_bytes_per_s: float = USUAL_LOCAL_BYTES_PER_S
    network_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.devices < 1 or (self.memory_bytes is not None and self.memory_bytes < 1):
            raise ValueError(f"{self.name} needs at least 1 device with memory")
        network = 1.0 if self.network_bytes_per_s is None else self.network_bytes_per_s
        if self.start_s < 0 or min(self.local_bytes_per_s, network) <= 0:
            raise ValueError(f"{self.name} starts in at least 0 s, and its links carry more than 0 bytes a second")

    @property
    def measured(self) -> MeasuredType:
        """The type as the optimizer measures it; shards of single devices exchange over the network."""
        link = self.profile.link
        known = USUAL_NETWORK_BYTES_PER_S if link is None else link.bytes_per_s
        network = known if self.network_bytes_per_s is None else self.network_bytes_per_s
        local = network if self.devices == 1 else self.local_bytes_per_s
        return MeasuredType(self.name, self.profile, self.devices, local, network, self.memory_bytes)
