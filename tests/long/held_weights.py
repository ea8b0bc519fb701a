"""What the devices of a mesh keep of its model's weights, beside what the model's folder has."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

from spotwise.core.messages.members import Member, MemberKind
from spotwise.core.weights.inventory import ModelSketch, PanelRange, WeightInventory
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.mesh.links.ucx_weights import UcxWeights
from spotwise.mesh.redis.store import RedisStore
from tests.live.mesh import LiveMesh


class _Asking:
    """A `WeightSource` without weights."""

    layout = 0

    def inventory(self) -> WeightInventory:
        return WeightInventory("test", 0, {}, {})

    def sketch(self) -> ModelSketch:
        raise ValueError("there is no model here")

    def export_panels(self, matrix: str, panels: range) -> memoryview:
        raise ValueError(f"panels {panels} of {matrix} are not here")

    def times_dropped(self, matrix: str, panels: range) -> int:
        return 0


def assert_as_in_folder(mesh: LiveMesh, folder: Path) -> None:
    """Each device of a mesh that takes no other shape meanwhile keeps what the model's folder has, byte for byte."""
    wrong, compared = asyncio.run(_wrong_panels(mesh, folder))
    assert not wrong
    assert compared, "no device keeps anything"


@functools.cache
def _reference(folder: Path) -> WeightStore:
    store = WeightStore(EngineConfig(folder, "float32", "cpu", threads=1))
    store.load(GroupPlace(Shard(), 1).share_of(store.structure.sketch))
    return store


async def _wrong_panels(mesh: LiveMesh, folder: Path) -> tuple[list[str], int]:
    reference = await asyncio.to_thread(_reference, folder)
    store = await RedisStore.connect(mesh.state.redis_url)
    end = UcxWeights(_Asking(), "test", 1)
    await end.start()
    try:
        devices = [member for member in await store.members() if member.kind is MemberKind.DEVICE]
        found = [await _compared(end, device, reference) for device in devices]
    finally:
        await end.close()
        await store.close()
    return [each for wrong, _ in found for each in wrong], sum(compared for _, compared in found)


async def _compared(end: UcxWeights, device: Member, reference: WeightStore) -> tuple[list[str], int]:
    """Which panels of a device are wrong, and how many bytes it has."""
    inventory = await end.inventory(device.transfer_address)
    wrong, compared = list[str](), 0
    assert not inventory.panels or inventory.layout == reference.layout, device.id
    for name, ranges in inventory.panels.items():
        panel_bytes = reference.structure.forms[name].panel_bytes
        for panels in ranges:
            held = bytearray(len(panels) * panel_bytes)
            await end.get(
                device.transfer_address, inventory.layout, PanelRange(name, panels, panel_bytes), memoryview(held)
            )
            compared += len(held)
            if held != reference.export_panels(name, panels):
                empty = sum(not any(held[at : at + panel_bytes]) for at in range(0, len(held), panel_bytes))
                wrong.append(f"{device.id}: {name} {panels}, of which {empty} panels are zeros")
    return wrong, compared
