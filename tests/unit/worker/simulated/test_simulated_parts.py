"""Parts of a simulated device: they take the time of weights, and are in groups as any part is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace
from spotwise.core.planner.change_cost import STORAGE_BYTES_PER_S
from spotwise.core.requests.kv_part import KvPart
from spotwise.mesh.ports.ports import MeshError
from spotwise.worker.simulated.groups import part as module
from spotwise.worker.simulated.groups.part import SimulatedPart, SimulatedParts, simulated_model
from tests.contracts.waiting import until

MODEL = simulated_model("tiny", 4096)
FORM = g.FormGroup(7, "w", 2, 2, 1, 1, "", 9, 0, 16, "auto", None)


class NotedPlaces:
    """A device that notes where it is."""

    def __init__(self) -> None:
        self.places: dict[str, DevicePlace] = {}
        self.stopped = False
        self.host = SimpleNamespace(id="d", member=SimpleNamespace(incarnation=3), stop=self._stop)

    def _stop(self) -> None:
        self.stopped = True

    def entered(self, leader_id: str, place: DevicePlace) -> None:
        self.places[leader_id] = place

    def left(self, leader_id: str) -> None:
        self.places.pop(leader_id, None)


class Leader:
    """A leader's stream to the device."""

    def __init__(self, parts: SimulatedParts) -> None:
        self.device = NotedPlaces()
        self.reports: list[g.GroupReport] = []
        self.orders: asyncio.Queue[g.GroupOrder | None] = asyncio.Queue()
        self.following = asyncio.create_task(
            parts.follow(cast(Any, self.device), "w", self._stream(), self.reports.append)
        )

    async def _stream(self) -> AsyncIterator[g.GroupOrder]:
        while (order := await self.orders.get()) is not None:
            yield order


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that loading takes, which the test does not wait for."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, current_task=asyncio.current_task))
    return slept


@pytest.fixture
def parts(slept_s: list[float]) -> SimulatedParts:
    return SimulatedParts(MODEL)


async def test_only_what_a_device_lacks_takes_time(parts: SimulatedParts, slept_s: list[float]) -> None:
    """A quarter of the weights first, of which another shape has half; of a part that it holds, nothing."""
    whole_s = MODEL.weight_bytes / STORAGE_BYTES_PER_S
    took = [await parts.load(part) for part in (KvPart(0, 16, 0, 4), KvPart(0, 16, 0, 8), KvPart(0, 8, 0, 8))]
    assert [each.read_bytes for each in took] == [MODEL.weight_bytes // 4, MODEL.weight_bytes // 4, 0]
    assert slept_s == pytest.approx([whole_s / 4, whole_s / 4, 0.0])


def test_the_model_can_be_cut_into_eight_shards() -> None:
    """Its layers' bytes are those of its matrices, so that plans know which a device has."""
    assert MODEL.shard_degrees == (1, 2, 4, 8)
    assert MODEL.why_not(2, 3) is not None
    assert MODEL.partition is not None
    each = MODEL.partition.matrices
    assert MODEL.layer_bytes == MODEL.value_bytes * sum(matrix.columns * matrix.inputs for matrix in each)


async def test_a_device_is_in_the_group_until_it_is_dissolved(parts: SimulatedParts) -> None:
    """With its place among the layers and heads; the last group of a leader ends the stream."""
    leader = Leader(parts)
    leader.orders.put_nowait(FORM)
    await until(lambda: bool(leader.reports))
    (joined,) = leader.reports
    assert isinstance(joined, g.GroupJoined)
    assert (joined.epoch, joined.loaded.read_bytes > 0, joined.share.member_id) == (7, True, "d")
    place = leader.device.places["w"]
    assert (place.stage, place.shard, place.kv_heads, place.layers[1]) == (1, 1, (4, 8), MODEL.layers)
    leader.orders.put_nowait(g.DissolveGroup("a member is gone"))
    await until(lambda: not leader.device.places)
    assert not leader.following.done()
    leader.orders.put_nowait(g.DissolveGroup("the leader leaves", is_last=True, for_good=True))
    await leader.following
    assert leader.device.stopped


async def test_a_group_that_the_model_does_not_allow_is_refused(parts: SimulatedParts) -> None:
    leader = Leader(parts)
    leader.orders.put_nowait(replace(FORM, shards=3))
    await until(lambda: bool(leader.reports))
    (refused,) = leader.reports
    assert isinstance(refused, g.GroupRefused)
    assert "3 shards do not divide its 8 KV heads" in refused.reason
    assert not leader.device.places
    leader.orders.put_nowait(None)
    await leader.following
    with pytest.raises(MeshError, match="do not divide"):
        await SimulatedPart(parts).load(replace(FORM, shards=3))


async def test_a_device_that_ends_ends_its_streams(parts: SimulatedParts) -> None:
    """As a process would: its leaders notice, although other devices of the process stay."""
    leader = Leader(parts)
    leader.orders.put_nowait(FORM)
    await until(lambda: bool(leader.reports))
    await parts.close()
    with pytest.raises(asyncio.CancelledError):
        await leader.following
    assert not leader.device.places
