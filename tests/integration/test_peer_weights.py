"""A device gets what it lacks from others over real UCX: in part from each, and from the rest where one is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.messages.reshape import PlannedWeights
from spotwise.core.parallel.model_partition import ModelShare
from spotwise.core.weights.inventory import PanelRange
from spotwise.engine.model.loading import EngineConfig
from spotwise.engine.model.sketch_folder import write_sketch
from spotwise.engine.native.shard import Shard
from spotwise.engine.parts.group_place import GroupPlace
from spotwise.engine.parts.weight_store import WeightStore
from spotwise.worker.groups.peer_weights import PeerWeights
from spotwise.worker.settings import WorkerSettings
from tests.integration.test_groups import wide_model

pytestmark = pytest.mark.mesh


def share_of(store: WeightStore, stages: int, shards: int, stage: int, shard: int) -> ModelShare:
    return GroupPlace(Shard(shard, shards, stage), stages).share_of(store.structure.sketch)


class Devices:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[Member] = []
        self.stores: list[WeightStore] = []
        self.weights: list[PeerWeights] = []

    async def add(self, *shares: tuple[int, int, int, int], folder: Path | None = None) -> PeerWeights:
        """Start a device that has loaded parts of the model from its folder."""
        store = WeightStore(EngineConfig(folder or self.folder, "float32", "cpu", threads=1))
        for share in shares:
            store.load(share_of(store, *share))
        _ = store.structure
        name = f"device-{len(self.members)}"
        member = Member(name, MemberKind.DEVICE, 1, MemberState.READY, "127.0.0.1", 1, "")
        settings = WorkerSettings(
            service_id=name,
            nats_url="nats://x",
            redis_url="redis://x",
            model_dir=self.folder,
            weight_buffer_bytes=1 << 16,
        )

        async def others() -> list[Member]:
            return [each for each in self.members if each.id != name]

        weights = PeerWeights(member, others, store, settings)
        address = await weights.start()
        self.members.append(Member(name, MemberKind.DEVICE, 1, MemberState.READY, "", 1, "", transfer_address=address))
        self.stores.append(store)
        self.weights.append(weights)
        return weights


@pytest.fixture
async def devices(tmp_path: Path) -> AsyncIterator[Devices]:
    """Of a random model that can be cut into four stages of four shards."""
    found = Devices(wide_model("llama", tmp_path / "model"))
    yield found
    for weights in found.weights:
        await weights.close()


def after_panels(patch: pytest.MonkeyPatch, store: WeightStore, do: Callable[[PanelRange], object]) -> None:
    """Do this whenever panels have arrived."""
    keep: Callable[[PanelRange], None] = store.panels_arrived

    def then(panels: PanelRange) -> None:
        keep(panels)
        do(panels)

    patch.setattr(store, "panels_arrived", then)


def require_same(ours: WeightStore, folder: Path, share: ModelShare) -> None:
    """All that a share needs is what the folder has."""
    reference = WeightStore(EngineConfig(folder, "float32", "cpu", threads=1))
    reference.load(share)
    assert not ours.missing(share)
    for name, ranges in reference.needed(share).items():
        for panels in ranges:
            assert ours.export_panels(name, panels) == reference.export_panels(name, panels)


async def test_what_several_have_together_is_put_together(devices: Devices) -> None:
    """Two shards of one stage and one of the other make the model, but for panels that none has, which the folder gives."""
    await devices.add((2, 2, 0, 0))
    await devices.add((2, 2, 0, 1))
    await devices.add((2, 2, 1, 0))
    asking = await devices.add()
    store = devices.stores[-1]
    whole = share_of(store, 1, 1, 0, 0)
    fetched = await (await asking.fetch(whole)).run()
    assert set(fetched.bytes_from) == {"device-0", "device-1", "device-2"}
    rest = sum(each.byte_count for each in store.missing(whole))
    assert fetched.put_off_bytes == rest > 0
    store.load(whole)
    require_same(store, devices.folder, whole)
    assert (await (await asking.fetch(whole)).run()).byte_count == 0


async def test_weights_come_from_whom_the_plan_names_in_its_order(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layers first, from one; the others from another; panels without a holder in the plan, from any that has them."""
    await devices.add((1, 1, 0, 0))
    await devices.add((1, 1, 0, 0))
    asking = await devices.add()
    store, arrived = devices.stores[-1], list[str]()
    after_panels(monkeypatch, store, lambda panels: arrived.append(panels.matrix))
    whole = share_of(store, 1, 1, 0, 0)
    plan = [PlannedWeights("device-2", "device-1", 2, 3), PlannedWeights("device-2", "device-0", -1, 3)]
    fetched = await (await asking.fetch(whole, [*plan, PlannedWeights("device-7", "device-1", -1, 9)])).run()
    layers = store.layer_numbers(whole)
    bytes_of = {
        late: sum(
            len(panels) * store.structure.forms[name].panel_bytes
            for name, spans in store.needed(whole).items()
            for panels in spans
            if (layers[name] >= 2) is late
        )
        for late in (False, True)
    }
    assert fetched.bytes_from == {"device-0": bytes_of[False], "device-1": bytes_of[True]}
    assert fetched.unplanned_bytes == 0
    first_of_others = next(number for number, name in enumerate(arrived) if layers[name] < 2)
    assert sum(layers[name] >= 2 for name in arrived[first_of_others:]) <= 1  # one may be under way beside the next
    require_same(store, devices.folder, whole)


async def test_what_a_planned_holder_does_not_have_comes_from_others(devices: Devices) -> None:
    await devices.add((2, 1, 0, 0))
    await devices.add((1, 1, 0, 0))
    asking = await devices.add()
    whole = share_of(devices.stores[-1], 1, 1, 0, 0)
    fetched = await (await asking.fetch(whole, [PlannedWeights("device-2", "device-0", -1, 99)])).run()
    assert fetched.put_off_bytes == 0 < fetched.unplanned_bytes == fetched.bytes_from["device-1"]
    require_same(devices.stores[-1], devices.folder, whole)


async def test_a_lost_holder_costs_nothing_that_another_has(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes in the midst of it; the next one gives what it owed."""
    first = await devices.add((1, 1, 0, 0))
    await devices.add((1, 1, 0, 0))
    asking = await devices.add()
    arrived: list[PanelRange] = []
    ending: list[asyncio.Task[None]] = []

    def end_at_the_fifth(panels: PanelRange) -> None:
        arrived.append(panels)
        if len(arrived) == 5:
            ending.append(asyncio.create_task(first.close()))

    after_panels(monkeypatch, devices.stores[-1], end_at_the_fifth)
    whole = share_of(devices.stores[-1], 1, 1, 0, 0)
    fetched = await (await asking.fetch(whole)).run()
    await asyncio.gather(*ending)
    assert fetched.put_off_bytes == 0 and fetched.bytes_from["device-1"] > 0
    require_same(devices.stores[-1], devices.folder, whole)


async def test_a_fetch_that_is_called_off_leaves_what_has_arrived(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is due any more, and the next one gets the rest."""
    await devices.add((1, 1, 0, 0))
    asking = await devices.add()
    store = devices.stores[-1]
    whole = share_of(store, 1, 1, 0, 0)
    fetch = await asking.fetch(whole)
    running = asyncio.create_task(fetch.run())
    after_panels(monkeypatch, store, lambda _: running.cancel())
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    monkeypatch.undo()
    assert store.missing(whole)
    await (await asking.fetch(whole)).run()
    require_same(store, devices.folder, whole)


async def test_a_device_without_a_folder_gets_a_description(devices: Devices, tmp_path: Path) -> None:
    """With it, it knows the model's digest and layout, and needs nothing but the panels."""
    giving = await devices.add((1, 1, 0, 0))
    write_sketch(giving.sketch(), tmp_path / "sketch")
    asking = await devices.add(folder=tmp_path / "sketch")
    store = devices.stores[-1]
    assert asking.layout == giving.layout
    whole = share_of(store, 1, 1, 0, 0)
    await (await asking.fetch(whole)).run()
    store.load(whole)
    require_same(store, devices.folder, whole)
