"""A device leaves a group that is broken, whichever member notices it first, and whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvShare
from spotwise.engine.model.loading import EngineConfig
from spotwise.worker.groups import device, group_numerics
from spotwise.worker.groups.device import DeviceSession
from tests.contracts.waiting import until
from tests.unit.core.builders import AMX, DOT

FORM = g.FormGroup(7, "leader", 1, 2, 0, 1, "/memory", 9, 0, 16, "float32", "digest")


class Part:
    """A part that loads at once, and takes a while to leave: its engine computes."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(engine=SimpleNamespace(model_digest="digest"), computes_with="")
        self.left = 0
        self.why_broken = "member 0 is gone"
        self.has_left = asyncio.Event()
        self.is_in = self.is_whole = False
        self.places: list[str] = []
        self.freed: list[str] = []
        self.others_are_there = asyncio.Event()
        self.others_are_there.set()

    async def load(self, form: g.FormGroup) -> g.LoadedWeights:
        return g.LoadedWeights(4)

    async def join(self, form: g.FormGroup) -> None:
        self.is_in = self.is_whole = True

    async def completed(self) -> bool:
        await self.others_are_there.wait()
        return self.is_whole

    async def leave(self) -> None:
        was_in, self.is_in = self.is_in, False
        if was_in:
            await asyncio.sleep(0.2)
            self.left += 1
            self.has_left.set()

    def place(self, form: g.FormGroup) -> None:
        return None


class Device:
    """A device that notes where it is."""

    host: Any = SimpleNamespace(id="device")
    settings: Any = None

    def __init__(self, part: Part) -> None:
        self._part = part

    def entered(self, leader_id: str, place: DevicePlace) -> None:
        self._part.places.append(leader_id)

    def left(self, leader_id: str) -> None:
        self._part.places = [each for each in self._part.places if each != leader_id]

    async def free_part(self, leader_id: str) -> None:
        self._part.freed.append(leader_id)


class Transfers:
    """Hand-offs that listen at once."""

    share = KvShare("device", 1, "address", KvPart(0, 1, 0, 1))

    def __init__(self, *args: Any) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Leader:
    """A leader's stream: orders until it ends."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[g.GroupOrder | None] = asyncio.Queue()
        self.has_joined = asyncio.Event()
        self.reports: list[g.GroupReport] = []

    def note(self, report: g.GroupReport) -> None:
        self.reports.append(report)
        if isinstance(report, g.GroupJoined):
            self.has_joined.set()

    async def stream(self) -> AsyncIterator[g.GroupOrder]:
        while (order := await self.orders.get()) is not None:
            yield order


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(device, "PartTransfers", Transfers)
    return Part()


async def _joined(part: Part) -> tuple[Leader, asyncio.Task[None]]:
    leader = Leader()
    session = DeviceSession(Device(part), "leader", cast(Any, part), leader.note)
    following = asyncio.create_task(session.follow(leader.stream()))
    leader.orders.put_nowait(FORM)
    if part.others_are_there.is_set():
        await leader.has_joined.wait()
    return leader, following


async def test_it_leaves_a_broken_group_without_a_word_of_its_leader(part: Part) -> None:
    """The leader may be stopped, and its stream open."""
    leader, following = await _joined(part)
    part.is_whole = False
    async with asyncio.timeout(2.0):
        await part.has_left.wait()
    assert not following.done()
    leader.orders.put_nowait(None)
    await following
    assert part.left == 1


async def test_a_stream_that_ends_while_it_leaves_interrupts_nothing(part: Part) -> None:
    """The end of the leader's stream comes while the device is on its way out."""
    leader, following = await _joined(part)
    part.is_whole = False
    await asyncio.sleep(0.2)  # more than the interval at which it looks
    leader.orders.put_nowait(None)
    await following
    assert part.left == 1


@pytest.mark.parametrize("is_whole", [True, False])
async def test_it_has_joined_once_all_others_are_there(is_whole: bool, part: Part) -> None:
    """One that is lost before might never be noticed; a group that breaks meanwhile is not joined."""
    part.others_are_there.clear()
    leader, following = await _joined(part)
    await asyncio.sleep(0.05)
    assert not leader.has_joined.is_set()
    part.is_whole = is_whole
    part.others_are_there.set()
    await asyncio.sleep(0.5)
    assert leader.has_joined.is_set() == is_whole
    assert (g.GroupBroken(FORM.epoch, "member 0 is gone") in leader.reports) != is_whole
    leader.orders.put_nowait(None)
    await following


async def test_it_frees_its_part_of_a_leader_that_forms_no_further_group(part: Part) -> None:
    """And ends the stream, by which the leader knows; the part of a leader that may come back is kept."""
    leader, following = await _joined(part)
    assert part.places == ["leader"]
    leader.orders.put_nowait(g.DissolveGroup("a member is gone"))
    leader.orders.put_nowait(FORM)
    leader.orders.put_nowait(g.DissolveGroup("the leader leaves", is_last=True))
    async with asyncio.timeout(2.0):
        await following
    assert (part.left, part.places, part.freed) == (2, [], ["leader"])


async def test_a_cancelled_stream_does_not_interrupt_how_it_leaves(part: Part) -> None:
    """The leader is killed: the stream ends, and what serves it is cancelled while the device leaves."""
    leader, following = await _joined(part)
    leader.orders.put_nowait(None)
    await asyncio.sleep(0.1)  # it is on its way out
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following
    assert part.left == 1


@pytest.mark.parametrize(("leaders_class", "joins"), [(DOT.name, True), (AMX.name, False)])
async def test_a_group_is_of_one_numerics_class(
    leaders_class: str, joins: bool, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another class refuses its place, and says why, before it loads anything."""
    monkeypatch.setattr(group_numerics, "engine_config", lambda settings: EngineConfig(Path()))
    monkeypatch.setattr(group_numerics, "expected_numerics", lambda config: replace(DOT, dtype=config.dtype))
    leader = Leader()
    session = DeviceSession(Device(part), "leader", cast(Any, part), leader.note)
    following = asyncio.create_task(session.follow(leader.stream()))
    leader.orders.put_nowait(replace(FORM, dtype="bfloat16", numerics_class=leaders_class))
    await until(lambda: leader.reports)
    (report,) = leader.reports
    if joins:
        assert isinstance(report, g.GroupJoined)
    else:
        assert isinstance(report, g.GroupRefused)
        assert DOT.name in report.reason and AMX.name in report.reason
    leader.orders.put_nowait(None)
    await following
