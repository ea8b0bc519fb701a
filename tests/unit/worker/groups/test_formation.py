"""A leader forms its group of devices that answer, refuse, break or hear nothing of each other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.core.requests.kv_part import KvPart
from spotwise.core.requests.record import KvShare
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.worker.groups import formation, refusals
from spotwise.worker.groups.formation import GroupFormation, NotWantedError
from spotwise.worker.groups.leading import with_exchange
from tests.contracts.waiting import until

FORM = g.FormGroup(0, "w", 1, 3, 0, 0, "", 0, 0, 16, "float32", "digest")
Answer = Callable[[g.FormGroup], g.GroupReport | None]


def _joined(form: g.FormGroup) -> g.GroupReport:
    return g.GroupJoined(form.epoch, g.LoadedWeights(4), "", KvShare("d", 1, "d:1", KvPart.of(range(1), range(1))))


class Part:
    """The leader's part: it joins at once, and is complete unless a test says otherwise."""

    def __init__(self) -> None:
        self.joined: list[g.FormGroup] = []
        self.is_whole = False
        self.is_complete = True
        self.broken_by: int | None = None

    async def load(self, form: g.FormGroup) -> g.LoadedWeights:
        return g.LoadedWeights()

    async def join(self, form: g.FormGroup) -> None:
        self.joined.append(form)
        self.is_whole = True

    async def completed(self) -> bool:
        return self.is_whole and self.is_complete

    def break_up(self) -> None:
        self.is_whole = False

    async def leave(self) -> None:
        self.is_whole = False

    def place(self, form: g.FormGroup) -> None:
        return None


class World:
    """A leader, its part, and devices d1 and d2 that answer orders as a test says."""

    def __init__(self) -> None:
        self.part = Part()
        self.machines = {"w": "m0", "d1": "m0", "d2": "m0"}
        self.answers: dict[str, list[Answer]] = {"d1": [_joined], "d2": [_joined]}
        self.orders: dict[str, list[g.FormGroup]] = {"d1": [], "d2": []}
        self.formed: list[int] = []
        self.leaders = {"d1": "w", "d2": "w"}
        self.places: list[Any] = []
        self.blocks = {"w": 9, "d1": 9, "d2": 9}
        self.incarnations: dict[str, int] = {}
        self.troubles: list[str] = []
        self.failures: list[str] = []

    def offer(self, name: str) -> g.DeviceOffered:
        return g.DeviceOffered(name, 1 << 20, 0, self.machines[name], f"{name}:7000")

    def formation(
        self, exchange: g.GroupExchange = g.GroupExchange.TCP, device_ids: tuple[str, ...] = ()
    ) -> GroupFormation:
        async def members() -> list[Member]:
            return [
                Member(
                    name, MemberKind.DEVICE, incarnation, MemberState.READY, "h", 1, f"{name}:1", leader_id=leader_id
                )
                for name, leader_id in {**self.leaders, "w": "w"}.items()
                for incarnation in [self.incarnations.get(name, 1)]
            ]

        def introduce(**fields: Any) -> None:
            if "trouble" in fields:
                self.troubles.append(fields["trouble"])

        async def registered(member_ids: Sequence[str]) -> list[Member]:
            return [member for member in await members() if member.id in member_ids]

        host = SimpleNamespace(
            id="w",
            settings=ServiceSettings(service_id="w"),
            store=SimpleNamespace(members=members, registered=registered),
            introduce=introduce,
            beat_soon=lambda: None,
            fail=self.failures.append,
        )
        engine = SimpleNamespace(
            formed=lambda links, epoch, shares: self.formed.append(epoch), lose=lambda reason: None
        )
        return GroupFormation(
            cast(Any, host),
            cast(Any, self.part),
            cast(Any, engine),
            FORM,
            self.offer("w"),
            partial(with_exchange, choice=exchange),
            device_ids,
            self.places.append,
            lambda offers: min(self.blocks[offer.device_id] for offer in offers),
        )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    created = World()

    class Link:
        def __init__(self, leader_id: str, name: str, address: str, reported: Any, lost: Any, access: Any) -> None:
            self.device_id, self.is_alive = name, True
            self._reported = reported
            asyncio.get_running_loop().call_soon(reported, self, created.offer(name))

        def send(self, order: g.GroupOrder) -> None:
            if isinstance(order, g.DissolveGroup):
                return
            assert isinstance(order, g.FormGroup)
            created.orders[self.device_id].append(order)
            answers = created.answers[self.device_id]
            answer = (answers.pop(0) if len(answers) > 1 else answers[0])(order)
            if answer is not None:
                asyncio.get_running_loop().call_soon(self._reported, self, answer)

        async def close(self) -> None:
            self.is_alive = False

    monkeypatch.setattr(formation, "DeviceLink", Link)
    monkeypatch.setattr(formation, "_LOOK_S", 0.01)
    monkeypatch.setattr(formation, "_HEAR_S", 0.1)
    yield created


async def _form(of_world: GroupFormation) -> None:
    async with asyncio.timeout(5.0):
        await of_world.offers()
        await of_world.form(9, 0)


@pytest.mark.parametrize(
    ("exchange", "machine", "by_tcp"),
    [
        (g.GroupExchange.AUTO, "m0", False),
        (g.GroupExchange.AUTO, "m1", True),
        (g.GroupExchange.TCP, "m0", True),
        (g.GroupExchange.MEMORY, "m1", False),
    ],
)
async def test_members_of_one_machine_share_memory(
    exchange: g.GroupExchange, machine: str, by_tcp: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get each other's addresses, by position, and a secret that is new for each group."""
    if not by_tcp:
        monkeypatch.setattr(
            "spotwise.worker.groups.leading.SharedMemory",
            lambda size: SimpleNamespace(path=f"/memory-of-{size}", close=lambda: None),
        )
    world.machines["d2"] = machine
    of_world = world.formation(exchange)
    await _form(of_world)
    own, first, second = world.part.joined[0], world.orders["d1"][0], world.orders["d2"][0]
    assert [order.shard for order in (own, first, second)] == [0, 1, 2]
    assert first.addresses == (("w:7000", "d1:7000", "d2:7000") if by_tcp else ())
    assert own.exchange == first.exchange == second.exchange
    assert (own.exchange == "/memory-of-3") == (not by_tcp)


async def test_named_devices_have_the_positions_in_which_they_are_named(world: World) -> None:
    """Whatever leader they had; those of the leader's id that are not named are left alone."""
    world.leaders = {"d1": "other", "d2": "", "d3": "w"}
    world.orders["d3"] = []
    await _form(world.formation(device_ids=("d2", "d1")))
    assert [world.orders[name][0].shard for name in ("d2", "d1")] == [1, 2]
    assert world.orders["d3"] == []
    assert len(world.places) == 1


async def test_a_device_that_has_another_leader_by_now_stays_in_the_group(world: World) -> None:
    """It may be in groups of both; only its end breaks this one."""
    of_world = world.formation()
    await _form(of_world)
    world.leaders["d1"] = "another"
    keeping = asyncio.create_task(of_world.keep())
    await of_world._look()
    await asyncio.sleep(0.1)
    assert len(world.formed) == 1
    del world.leaders["d1"]
    await of_world._look()
    assert "d1" not in of_world._devices
    keeping.cancel()


async def test_a_device_that_refuses_ends_the_attempt_with_its_reason(world: World) -> None:
    world.answers["d2"] = [lambda form: g.GroupRefused(form.epoch, "too little memory")]
    world.answers["d1"] = [lambda form: None]  # it hears of d2 never
    with pytest.raises(MeshError, match="d2 cannot compute its part: too little memory"):
        await _form(world.formation())
    assert not world.part.is_whole


async def test_a_group_that_breaks_before_it_is_whole_is_formed_again(world: World) -> None:
    """With a later epoch; the other device, which has not answered, is not waited for."""
    world.answers["d2"] = [lambda form: g.GroupBroken(form.epoch, "member 0 of the group is gone"), _joined]
    world.answers["d1"] = [lambda form: None, _joined]
    await _form(world.formation())
    epochs = [order.epoch for order in world.orders["d1"]]
    assert len(epochs) == 2 and epochs[0] < epochs[1]
    assert world.formed == [epochs[1]]


async def test_members_that_hear_nothing_of_each_other_do_not_hold_up_the_group(world: World) -> None:
    """d1 has heard of all, so all have joined; d2 is silent at first, as behind a network that swallows packets."""
    world.answers["d2"] = [lambda form: None, _joined]
    await _form(world.formation())
    assert len(world.orders["d2"]) == 2
    assert len(world.formed) == 1


@pytest.mark.parametrize("named", [(), ("d1", "d3")])
async def test_a_leader_that_waits_for_a_device_ends_when_it_is_not_wanted(
    world: World, named: tuple[str, ...]
) -> None:
    """The device has left the mesh, and will not come."""
    del world.leaders["d2"]
    of_world = world.formation(device_ids=named)
    waiting = asyncio.create_task(_form(of_world))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    of_world.give_up()
    with pytest.raises(NotWantedError):
        await waiting
    assert not world.formed


async def test_a_group_that_is_not_wanted_while_its_members_load_does_not_serve(world: World) -> None:
    world.answers["d2"] = [lambda form: (of_world.give_up(), _joined(form))[1]]
    of_world = world.formation()
    with pytest.raises(NotWantedError):
        await _form(of_world)


async def test_an_answer_of_an_earlier_group_counts_for_nothing(world: World) -> None:
    world.answers["d2"] = [lambda form: _joined(replace(form, epoch=form.epoch - 1)), _joined]
    await _form(world.formation())
    assert len(world.orders["d2"]) == 2


async def test_a_leader_that_hears_of_nobody_tries_again(world: World) -> None:
    """Both devices have joined, and the leader has not heard of one."""
    world.part.is_complete = False
    of_world = world.formation()
    forming = asyncio.create_task(_form(of_world))
    await until(lambda: len(world.orders["d1"]) > 1)
    world.part.is_complete = True
    await forming
    assert len(world.formed) == 1


def _refuses(form: g.FormGroup) -> g.GroupReport:
    return g.GroupRefused(form.epoch, "too little memory")


def _breaks(world: World, name: str) -> None:
    world.incarnations[name] = world.incarnations.get(name, 1) + 1
    world.answers[name] = [_refuses]
    world.orders[name].clear()
    world.part.break_up()


@contextlib.asynccontextmanager
async def _kept(world: World, **options: Any) -> AsyncIterator[GroupFormation]:
    of_world = world.formation(**options)
    await _form(of_world)
    keeping = asyncio.create_task(of_world.keep())
    yield of_world
    keeping.cancel()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "FIRST_PAUSE_S", 1000.0)
    monkeypatch.setattr(refusals, "LONGEST_PAUSE_S", 1000.0)


@pytest.mark.usefixtures("pauses")
@pytest.mark.parametrize("named", [(), ("d1", "d2")])
async def test_a_replacement_that_refuses_is_left_alone_for_a_while(world: World, named: tuple[str, ...]) -> None:
    """It is not asked at each look, and `status` says why the worker computes nothing."""
    async with _kept(world, device_ids=named) as of_world:
        _breaks(world, "d2")
        await of_world._look()
        await until(lambda: world.troubles[-1].endswith("d2 cannot compute its part: too little memory"))
        await asyncio.sleep(1.2)
        assert len(world.orders["d2"]) == 1
        assert not world.failures


@pytest.mark.usefixtures("pauses")
async def test_another_device_takes_the_place_of_one_that_refuses(world: World) -> None:
    """The one that has none yet; nothing is wrong then."""
    async with _kept(world) as of_world:
        world.leaders["d3"] = "w"
        world.machines["d3"], world.orders["d3"], world.answers["d3"] = "m0", [], [_joined]
        _breaks(world, "d2")
        await of_world._look()
        await until(lambda: len(world.formed) == 2)
        assert (len(world.orders["d2"]), [order.shard for order in world.orders["d3"]]) == (1, [2])
        assert world.troubles[-1] == ""


@pytest.mark.usefixtures("pauses")
async def test_a_device_that_is_started_again_is_asked_at_once(world: World) -> None:
    """Its memory may be another."""
    async with _kept(world) as of_world:
        _breaks(world, "d2")
        await of_world._look()
        await until(lambda: world.orders["d2"] != [])
        await asyncio.sleep(0.05)
        world.incarnations["d2"] += 1
        world.answers["d2"] = [_joined]
        await until(lambda: len(world.formed) == 2)
        assert not world.failures


@pytest.mark.parametrize("blocks", [4, 9])
async def test_a_worker_starts_again_with_the_blocks_that_a_smaller_replacement_holds(
    world: World, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its sequences lives then. Where blocks are not why the device refuses, that would not help."""
    monkeypatch.setattr(refusals, "FIRST_PAUSE_S", 0.01)
    async with _kept(world) as of_world:
        _breaks(world, "d2")
        world.blocks["d2"] = blocks
        await of_world._look()
        await until(lambda: bool(world.failures) if blocks < 9 else len(world.orders["d2"]) > 4)
        assert len(world.failures) == (blocks < 9)
        if blocks < 9:
            assert "d2 cannot compute its part: too little memory" in world.failures[0]
            assert len(world.orders["d2"]) == 3
            assert not world.part.is_whole


@pytest.mark.usefixtures("pauses")
async def test_a_leader_that_cannot_load_its_own_part_waits_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason is shown."""
    async with _kept(world) as of_world:
        tried: list[int] = []

        async def load(form: g.FormGroup) -> g.LoadedWeights:
            tried.append(form.epoch)
            raise MeshError("the folder is gone")

        monkeypatch.setattr(world.part, "load", load)
        _breaks(world, "d2")
        await of_world._look()
        await until(lambda: world.troubles[-1].endswith("the folder is gone"))
        await asyncio.sleep(1.2)
        assert len(tried) == 1
