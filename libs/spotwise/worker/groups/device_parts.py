"""The parts of the model that a device computes: one for each leader that it has, with the weights that they share.

Parts of leaders that are gone are kept until another part is needed, since a leader that is started again forms the same group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from spotwise.core.messages.groups import GroupOrder
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.engine.model.errors import ModelError
from spotwise.engine.parts.part_sizes import model_shape
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.grpc.device_control import Report
from spotwise.mesh.links.group_sockets import GroupSockets
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.process.garbage import give_back_freed_memory
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_thread import engine_config
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.groups.device import DeviceSession
from spotwise.worker.groups.group_part import GroupPart
from spotwise.worker.groups.peer_weights import PeerWeights, holders_in
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.settings import WorkerSettings


class DeviceParts:
    """`Parts` with an engine each.

    Args:
        settings: the device's settings.
        sockets: for exchanges with other machines.
        host: the device's host.
    """

    def __init__(self, settings: WorkerSettings, sockets: GroupSockets, host: ServiceHost) -> None:
        self._settings = settings
        self._sockets = sockets
        #: The weights that it keeps, for all parts.
        self.store = WeightStore(engine_config(settings))
        holders = partial(holders_in, host.store, host.id, settings.served_name)
        #: What it has from other devices, and gives to them.
        self.weights = PeerWeights(host.member, holders, self.store, settings)
        self._loads = asyncio.Lock()
        self._parts: dict[str, GroupPart] = {}
        self._in_use: set[str] = set()
        self._watchdog, self._device_id = host.watchdog, host.id
        self._watchdog.ask(self._look)

    async def shape(self) -> ModelShape:
        """See `Parts`; the first call must not be beside a part that computes."""
        try:
            shape = await asyncio.to_thread(model_shape, self.store)
        except ModelError as error:
            raise MeshError(f"the model cannot be served: {error}") from error
        return replace(shape, name=self._settings.served_name)

    async def follow(
        self, device: DeviceProcess, leader_id: str, orders: AsyncIterator[GroupOrder], report: Report
    ) -> None:
        """See `Parts`."""
        async with self.part_of(leader_id) as part:
            await DeviceSession(device, leader_id, part, report).follow(orders)

    @contextlib.asynccontextmanager
    async def part_of(self, leader_id: str) -> AsyncIterator[GroupPart]:
        """Have the device's part in groups of a leader."""
        for other in [other for other in self._parts if other not in (*self._in_use, leader_id)]:
            await self._parts.pop(other).close()
        part = self._parts.get(leader_id)
        if part is None:
            settings = self._settings
            part = GroupPart(
                self.store,
                self._loads,
                self.weights.fetch,
                settings.compute_threads,
                self._sockets,
                settings.group_patience_s,
                EngineWatch(self._watchdog, f"{self._device_id} in {leader_id}", settings.iteration_timeout_s),
            )
            self._parts[leader_id] = part
        self._in_use.add(leader_id)
        try:
            yield part
        finally:
            self._in_use.discard(leader_id)

    def _look(self) -> None:
        for part in self._parts.values():
            part.look()

    def part(self, leader_id: str | None) -> GroupPart | None:
        """Return the part in groups of a leader, if there is one."""
        return None if leader_id is None else self._parts.get(leader_id)

    async def free(self, leader_id: str) -> None:
        """See `Parts`."""
        part = self._parts.pop(leader_id, None)
        if part is not None:
            await part.close()
            await self.give_back()

    async def give_back(self) -> None:
        """See `Parts`; where there is no part the weights are kept for the next one."""
        async with self._loads:
            shares = [part.share for part in self._parts.values() if part.share is not None]
            if shares:
                await asyncio.to_thread(self.store.keep_only, shares)
        await asyncio.to_thread(give_back_freed_memory)

    async def close(self) -> None:
        """See `Parts`."""
        for leader_id in list(self._parts):
            await self.free(leader_id)
        await self.weights.close()
