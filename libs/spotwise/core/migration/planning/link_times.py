"""Transfer times between devices, and the ports that transfers use.

Law: within an instance bytes leave a device's port and enter another's; between instances they use the source's uplink and the
target's downlink, full duplex and shared by an instance's devices; from storage they use the target's storage link.
A port carries one transfer at a time, at its full rate.
`paper_seconds` is the paper's estimate (SpotServe, Miao et al., 2024, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotwise.core.migration.deployment import Device


@dataclass(frozen=True, slots=True)
class Links:
    """Bandwidths and fixed costs.

    Attributes:
        within_bytes_per_s: from one device to another of the same instance, each way.
        between_bytes_per_s: bandwidth of an instance's uplink, and of its downlink.
        storage_bytes_per_s: from storage into one instance.
        transfer_s, groups_s: seconds of each transfer; seconds of building communication groups, before the first byte moves.
    """

    within_bytes_per_s: float
    between_bytes_per_s: float
    storage_bytes_per_s: float
    transfer_s: float = 0.0
    groups_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.within_bytes_per_s, self.between_bytes_per_s, self.storage_bytes_per_s) <= 0:
            raise ValueError(f"every link must carry something: {self}")
        if min(self.transfer_s, self.groups_s) < 0:
            raise ValueError(f"no fixed cost is less than 0 s: {self}")


def paper_seconds(links: Links, moved: Sequence[tuple[Device | None, Device, int]]) -> float:
    """Return T_mig as the paper has it, for (source, target, bytes); a source of `None` is storage, a third term of ours.
    The network counts an instance's busier direction.
    """
    busiest = [0, 0, 0]
    counts: dict[tuple[str, str | None], int] = {}
    for source, target, num_bytes in moved:
        if source is None:
            ways: list[tuple[int, tuple[str, str | None]]] = [(2, ("storage", target.instance))]
        elif source.instance == target.instance:
            ways = [(1, ("within", target.instance))]
        else:
            ways = [(0, ("up", source.instance)), (0, ("down", target.instance))]
        for term, key in ways:
            counts[key] = counts.get(key, 0) + num_bytes
            busiest[term] = max(busiest[term], counts[key])
    return (
        busiest[0] / links.between_bytes_per_s
        + busiest[1] / links.within_bytes_per_s
        + busiest[2] / links.storage_bytes_per_s
        + links.groups_s
    )


class Ports:
    """The ports of each transfer, `count` in all. Devices, instances and ports go by number."""

    def __init__(self, links: Links, instance_of: Sequence[int]) -> None:
        self._links = links
        self._instance_of = instance_of
        devices, instances = len(instance_of), max(instance_of, default=-1) + 1
        self._entries = devices  # a device's port out is its number; its port in comes after all of those
        self._uplinks = 2 * devices
        self._downlinks = self._uplinks + instances
        self._storage = self._downlinks + instances
        self._devices_of: list[list[int]] = [[] for _ in range(instances)]
        for device, instance in enumerate(instance_of):
            self._devices_of[instance].append(device)
        self.count = self._storage + instances

    def of(self, source: int | None, target: int) -> tuple[int, int]:
        """Return the ports that bytes leave and enter; from storage the same one twice."""
        there = self._instance_of[target]
        if source is None:
            return self._storage + there, self._storage + there
        here = self._instance_of[source]
        if here == there:
            return source, self._entries + target
        return self._uplinks + here, self._downlinks + there

    def into(self, instance: int) -> list[int]:
        """Return the ports over which an instance's devices receive."""
        entries = [self._entries + device for device in self._devices_of[instance]]
        return [self._downlinks + instance, self._storage + instance, *entries]

    def seconds(self, source: int | None, target: int, num_bytes: int) -> float:
        """Return the duration of a transfer on free ports."""
        if source is None:
            rate = self._links.storage_bytes_per_s
        elif self._instance_of[source] == self._instance_of[target]:
            rate = self._links.within_bytes_per_s
        else:
            rate = self._links.between_bytes_per_s
        return self._links.transfer_s + num_bytes / rate
