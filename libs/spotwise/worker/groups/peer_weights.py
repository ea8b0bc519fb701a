"""The weights that a device has from others of the mesh, and gives to them.

Before a part is loaded, the device asks those that serve the same model what they keep, and gets what it lacks from them, in
the model's order. Weights that no device has, or gives any more, are read from the model folder afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import structlog

from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.inventory import ModelSketch, WeightInventory
from spotwise.engine.model.checkpoint import read_checkpoint
from spotwise.engine.model.errors import ModelError
from spotwise.engine.model.sketch_folder import sketch_of
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.mesh.ports.ports import MeshError, MeshStore
from spotwise.mesh.ports.weights import WeightTransferError
from spotwise.worker.groups.weight_fetch import WeightFetch
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

#: Holders that are asked, at most, beside those that a plan names.
_MOST_HOLDERS = 16


async def holders_in(store: MeshStore, own_id: str, model: str) -> list[Member]:
    """Return all devices that may have weights of a model, those in groups first; empty where the store cannot be asked."""
    try:
        members = await store.members()
    except MeshError:
        return []
    found = [
        member
        for member in members
        if member.kind is MemberKind.DEVICE
        and member.id != own_id
        and member.transfer_address
        and member.model
        and model in ("", member.model)
    ]
    return sorted(found, key=lambda member: (member.place is None, member.id))


class PeerWeights:
    """A device's weights among those of others; a `WeightSource`.

    Args:
        device: the device.
        holders: finds other devices that may have weights.
        store: the device's weights.
        settings: settings of its process.
    """

    def __init__(
        self,
        device: Member,
        holders: Callable[[], Awaitable[Sequence[Member]]],
        store: WeightStore,
        settings: WorkerSettings,
    ) -> None:
        self._device_id = device.id
        self._find_holders = holders
        self._store = store
        self._settings = settings
        host, port, security = settings.peer_host, settings.weights_port, settings.link_security()
        self._end = UcxWeights(self, device.id, device.incarnation, host, port, security=security)

    async def start(self) -> str:
        """Give weights from now on, at the address that is returned; raises `MeshError` where the port is taken."""
        await self._end.start()
        return self._end.address

    async def close(self) -> None:
        """Give no more, and end what is fetched."""
        await self._end.close()

    @property
    def layout(self) -> int:
        """See `WeightSource`."""
        return self._store.layout if self._store.is_known else 0

    def inventory(self) -> WeightInventory:
        """See `WeightSource`."""
        return WeightInventory(self._device_id, self.layout, self._store.fused_layers, self._store.held)

    def sketch(self) -> ModelSketch:
        """See `WeightSource`."""
        if not self._store.is_known:
            raise ValueError("the process has not read its model yet")
        folder, digest = self._settings.model_dir, self._store.structure.sketch.facts.digest
        assert digest is not None  # of every folder that was read
        try:
            return sketch_of(folder, read_checkpoint(folder), self._settings.served_name, digest)
        except ModelError as error:
            raise ValueError(str(error)) from error

    def export_panels(self, matrix: str, panels: range) -> memoryview:
        """See `WeightSource`."""
        return self._store.export_panels(matrix, panels)

    def times_dropped(self, matrix: str, panels: range) -> int:
        """See `WeightSource`."""
        return self._store.times_dropped(matrix, panels)

    async def fetch(self, share: ModelShare, plan: Sequence[PlannedWeights] = ()) -> WeightFetch:
        """Ask others what they have of what is missing for a share; `WeightFetch.run` gets it, while nothing else loads.

        Args:
            share: share of the model.
            plan: plan of all devices of a group.
        """
        if not self._settings.peer_weights or not self._store.missing(share):
            return WeightFetch(self._end, self._store, share, {}, self._settings.weight_buffer_bytes)
        planned = [each for each in plan if each.device_id == self._device_id]
        holders = await self._holders({each.source_id for each in planned})
        for inventory in holders.values():
            self._store.learn(inventory.fused_layers)
        return WeightFetch(self._end, self._store, share, holders, self._settings.weight_buffer_bytes, planned)

    async def _holders(self, planned_ids: Collection[str]) -> dict[str, WeightInventory]:
        """Return what others keep of the same model in the same layout, by their addresses; of those that the plan names, and
        some others.
        """
        known = await self._find_holders()
        others = [member for member in known if member.id not in planned_ids]
        found = [member for member in known if member.id in planned_ids] + others[:_MOST_HOLDERS]
        addresses = [member.transfer_address for member in found]
        answers = await asyncio.gather(*map(self._end.inventory, addresses), return_exceptions=True)
        holders: dict[str, WeightInventory] = {}
        for member, address, answer in zip(found, addresses, answers, strict=True):
            if isinstance(answer, WeightInventory):
                if answer.layout == self.layout and answer.panels:
                    holders[address] = answer
            elif not isinstance(answer, WeightTransferError):
                raise answer
            else:
                _log.info("holder_does_not_answer", holder=member.id, reason=str(answer))
        return holders
