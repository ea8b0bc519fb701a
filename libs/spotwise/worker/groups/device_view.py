"""Engine control's view of a device: what it computes of a group's model, and its memory."""

from __future__ import annotations

import psutil

from spotwise.core.members import Member
from spotwise.mesh.grpc_control import EngineDescription, RecentIterations
from spotwise.worker.groups.group_part import GroupPart


class DeviceView:
    """An `EngineView` of one device."""

    def __init__(self, part: GroupPart) -> None:
        self._part = part
        self._member: Member | None = None

    def seen(self, member: Member) -> Member:
        """Note the member as its next heartbeat says it, and return it."""
        self._member = member
        return member

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe the device; its iterations are its leader's."""
        if self._member is None:
            return None
        engine = self._part.loaded
        return EngineDescription(
            member=self._member,
            engine_sequences=0 if engine is None else engine.num_sequences,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=0,
            engine="nothing loaded" if engine is None else engine.computes_with,
            kv_bytes_per_token=0 if engine is None else engine.kv_bytes_per_token,
            times=self._part.times(),
        )

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return none: the leader measures the group's."""
        return RecentIterations(0, ())
