"""Ports of a leader's part and engine to the formation of its group: with torch (`group_part.py`, `group_engine.py`),
or simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace
from spotwise.core.requests.record import KvShare
from spotwise.mesh.grpc.device_control import DeviceLink

#: Returns an order with what its members, which offer this by position, exchange through; it is there within the block.
OpenExchange = Callable[[g.FormGroup, Sequence[g.DeviceOffered]], AbstractContextManager[g.FormGroup]]


class LeadersPart(Protocol):
    """The leader's own part."""

    @property
    def is_whole(self) -> bool:
        """Whether this process is in a group and all members are alive."""

    @property
    def is_complete(self) -> bool:
        """Whether every member of its group has joined it."""

    @property
    def broken_by(self) -> int | None:
        """The member that broke the group, where one did."""

    async def load(self, form: g.FormGroup) -> g.LoadedWeights:
        """Load what the position computes; return which weights it got. Raises `MeshError` where it cannot be served."""

    async def join(self, form: g.FormGroup) -> None:
        """Be in the group; raises `MeshError` where its exchange cannot be opened."""

    async def completed(self) -> bool:
        """Wait until every member has joined, or the group is broken; return whether it is whole."""

    def break_up(self) -> None:
        """End what every member of the group waits for; idempotent."""

    async def leave(self) -> None:
        """Be in no group; idempotent."""

    def place(self, form: g.FormGroup) -> DevicePlace:
        """Describe the position."""


class FormedEngine(Protocol):
    """The engine that the group is."""

    def formed(self, links: Sequence[DeviceLink], epoch: int, shares: tuple[KvShare, ...]) -> None:
        """Note that the group is whole, and empty."""

    def lose(self, reason: str) -> None:
        """Note that the group is not whole any more; no effect where it is not."""

    def reported(self, report: g.GroupReport) -> None:
        """Take a device's report of its work."""
