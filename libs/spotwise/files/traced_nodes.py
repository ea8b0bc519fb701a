"""The nodes of a trace as machines for the instances of a mesh: which are up, which will be taken, and with what notice.

An instance may have a node that is up, has no instance, and has no notice; the node that came first is given first. A node's
instance ends when the node leaves, and its notice comes that long before. Seconds are the mesh's since the trace began, in each
of which `compress` of the trace's pass.
"""

from __future__ import annotations

from collections.abc import Collection

from spotwise.files.spot_traces import NodeLife, SpotTrace


class TracedNodes:
    """Stays of nodes, by their index in order of their beginnings.

    Args:
        compress: seconds of the trace in a second.
        grace_s: seconds of the mesh between notice and end, where the trace does not say.
        with_notice: otherwise nodes leave without.
    """

    def __init__(
        self, trace: SpotTrace, compress: float = 1.0, grace_s: float = 30.0, *, with_notice: bool = True
    ) -> None:
        """Raise `ValueError` unless `compress` is above 0 and `grace_s` at least 0."""
        if not compress > 0 or grace_s < 0:
            raise ValueError(f"compress ({compress:g}) is above 0, and grace_s ({grace_s:g}) at least 0")
        self.stays: tuple[NodeLife, ...] = tuple(sorted(trace.lives(), key=lambda life: (life.from_s, life.node)))
        self._compress = compress
        self._grace_s = grace_s
        self._with_notice = with_notice

    def free(self, taken: Collection[int], at_s: float) -> list[int]:
        """Return the stays that a new instance may have."""
        return [
            index
            for index in range(len(self.stays))
            if index not in taken and self.is_up(index, at_s) and self.is_up(index, at_s + self.notice_s(index))
        ]

    def up(self, at_s: float) -> int:
        """Return how many nodes are up."""
        return sum(self.is_up(index, at_s) for index in range(len(self.stays)))

    def is_up(self, index: int, at_s: float) -> bool:
        """Return whether a node is there."""
        stay, trace_s = self.stays[index], at_s * self._compress
        return stay.from_s <= trace_s and (stay.to_s is None or trace_s < stay.to_s)

    def notice_s(self, index: int) -> float:
        """Return the seconds from a node's notice to its end."""
        if not self._with_notice:
            return 0.0
        notice_s = self.stays[index].notice_s
        return self._grace_s if notice_s is None else notice_s / self._compress

    def end_s(self, index: int) -> float | None:
        """Return when a node leaves; `None` where it stays."""
        to_s = self.stays[index].to_s
        return None if to_s is None else to_s / self._compress
