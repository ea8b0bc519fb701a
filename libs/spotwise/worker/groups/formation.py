"""Forms a leader's group, and forms it again whenever it is broken.

The devices are named to the leader, by position; or as many as register with its id are given positions, and keep those that
they had. They load their parts side by side. A device that does not answer any more is left out once its registration has
expired: it may be stopped, and continue later. One that refuses its part is left out for a while, and others are taken instead.
Where a group that was whole cannot be formed again because a device has less memory now, its worker ends, and starts again with
as many KV blocks as its devices hold: none of its sequences lives then.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from spotwise.core.messages import groups as g
from spotwise.core.messages.members import DevicePlace, Member, MemberKind, MemberState
from spotwise.mesh.grpc.device_control import DeviceLink
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import control_access
from spotwise.worker.groups.group_ports import FormedEngine, LeadersPart, OpenExchange
from spotwise.worker.groups.refusals import DeviceRefusals

_log = structlog.get_logger(__name__)

#: Interval at which devices are looked for, and missing ones noticed.
_LOOK_S = 0.2
#: A device whose stream was lost is called again after so long: its registration outlives it.
_CALL_AGAIN_S = 1.0
#: Interval at which a whole group is checked between iterations.
_CHECK_S = 0.05
#: Members of which one has heard of all others hear of each other within so long.
_HEAR_S = 5.0
#: A leader that leaves waits so long for its devices to leave.
_LEAVE_S = 2.0
#: Refusals in a row of a device that holds fewer blocks, after which the worker starts again with so few: others may come.
_REFUSALS = 3


class NotWantedError(MeshError):
    """The worker is to leave, and its group is not formed yet."""


@dataclass(slots=True)
class _Device:
    """A device with a stream: what it offers, and the last group that it has joined or refused."""

    link: DeviceLink
    incarnation: int
    offer: g.DeviceOffered | None = None
    answer: g.GroupJoined | g.GroupRefused | g.GroupBroken | None = None


class GroupFormation:
    """Keeps a leader's group whole.

    Args:
        host: the leader.
        part: the leader's.
        engine: the group's engine.
        form: the group's orders, but for epoch, position, memory and exchange.
        offer: the leader's.
        exchange: opens what its groups exchange through.
        device_ids: ids of the others, by position; empty: any that register with the leader's id.
        on_place: called with the leader's place in each group, and with `None` when it is in none.
        blocks: returns the KV blocks of a group whose members offer this, by position; `None`: it does not depend on that.
    """

    def __init__(
        self,
        host: ServiceHost,
        part: LeadersPart,
        engine: FormedEngine,
        form: g.FormGroup,
        offer: g.DeviceOffered,
        exchange: OpenExchange,
        device_ids: tuple[str, ...] = (),
        on_place: Callable[[DevicePlace | None], None] = lambda place: None,
        blocks: Callable[[Sequence[g.DeviceOffered]], int] | None = None,
    ) -> None:
        self._blocks = blocks
        self._refusals = DeviceRefusals()
        self._device_ids = device_ids
        self._on_place = on_place
        self._host = host
        self._part = part
        self._engine = engine
        self._form = form
        self._offer = offer
        self._exchange = exchange
        self._devices: dict[str, _Device] = {}
        self._positions: dict[str, int] = {}
        self._called_s: dict[str, float] = {}
        #: What each member did for its part of the last group.
        self.loaded: tuple[g.LoadedWeights, ...] = ()
        self._epoch = 0
        self._news = asyncio.Event()
        self._is_leaving = False
        self._is_wanted = True

    @property
    def _missing(self) -> int:
        return self._form.stages * self._form.shards - 1 - len(self._ready)

    @property
    def _ready(self) -> list[str]:
        """Devices that have said what they offer, and are not left alone because they refused."""
        now_s = time.monotonic()
        return sorted(
            name
            for name, device in self._devices.items()
            if device.offer is not None and not self._refusals.is_paused(name, device.incarnation, now_s)
        )

    @property
    def _can_try(self) -> bool:
        return self._missing <= 0 and not self._refusals.is_paused(self._host.id, 0, time.monotonic())

    async def offers(self) -> list[g.DeviceOffered]:
        """Wait for enough devices; return what all members offer, by position. Raises `NotWantedError`."""
        await self._look_until(lambda: self._can_try or not self._is_wanted)
        self._require_wanted()
        self._give_positions()
        return self._offers(self._members())

    async def form(self, num_blocks: int, host_blocks: int) -> None:
        """Form the group for the first time; raises `NotWantedError`, and `MeshError` where a member refuses its part."""
        self._form = replace(self._form, num_blocks=num_blocks, host_blocks=host_blocks)
        await self._until_formed()
        self._require_wanted()

    def give_up(self) -> None:
        """Form no first group: it is not wanted any more, and the devices may have left for which it would wait for ever."""
        self._is_wanted = False
        self._news.set()

    def _require_wanted(self) -> None:
        if not self._is_wanted:
            raise NotWantedError("the worker is to leave before its group is formed")

    async def keep(self) -> None:
        """Form the group anew each time that it is broken; returns where it cannot be, with so many blocks: the worker ends."""
        while True:
            self._show_trouble(f"its group is formed anew: {await self._until_broken()}")
            for device in self._devices.values():
                device.link.send(g.DissolveGroup("a member is gone"))
            await self._part.leave()
            self._show_place(None)
            began_s = time.monotonic()
            while True:
                await self.offers()
                # Nothing of this worker serves meanwhile.
                self._form = replace(self._form, serves_early=True, weights=())
                try:
                    await self._until_formed()
                    break
                except MeshError as error:
                    _log.error("group_not_formed", reason=str(error))
                    self._show_trouble(f"its group cannot be formed: {error}")
                    if self._is_too_large:
                        self._host.fail(f"{error}; the worker starts again with the blocks that its devices hold")
                        return
            _log.info("group_formed_anew", epoch=self._epoch, seconds=round(time.monotonic() - began_s, 3))

    async def leave(self, *, devices_stay: bool) -> None:
        """Form no further group. The devices leave the mesh with their leader, and this returns once they do, or soon; or they
        stay, and their parts of this leader's groups are freed.
        """
        self._is_leaving = True
        for device in self._devices.values():
            device.link.send(g.DissolveGroup("the leader leaves", is_last=True, for_good=not devices_stay))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while self._devices:
                    self._news.clear()
                    await self._news.wait()

    async def close(self) -> None:
        """End the streams."""
        self._engine.lose("the leader leaves")
        for device in self._devices.values():
            await device.link.close()

    @property
    def _is_too_large(self) -> bool:
        """Whether a device that is in the group goes on refusing more blocks than the members offer now."""
        devices = self._members()
        refusals = [self._refusals.in_a_row(device.link.device_id, device.incarnation) for device in devices]
        if self._blocks is None or max(refusals, default=0) < _REFUSALS:
            return False
        return 0 < self._blocks(self._offers(devices)) < self._form.num_blocks

    async def _until_broken(self) -> str:
        """Return why."""
        members = set(self._positions)
        while self._is_leaving or (self._part.is_whole and all(name in self._devices for name in members)):
            self._news.clear()
            try:
                async with asyncio.timeout(_CHECK_S):
                    await self._news.wait()
            except TimeoutError:
                pass
        gone = [name for name in sorted(members) if name not in self._devices]
        if not gone and (member := self._part.broken_by):
            gone = [name for name, position in self._positions.items() if position == member]
        reason = f"{', '.join(gone)} is gone" if gone else "a member has failed"
        _log.warning("group_broken", epoch=self._epoch, reason=reason)
        self._engine.lose(reason)
        return reason

    async def _until_formed(self) -> None:
        while not await self._try():
            await asyncio.sleep(_LOOK_S)
            await self.offers()

    async def _try(self) -> bool:
        """Form one group; return whether it is whole. Raises `MeshError` where a member refuses."""
        size = self._form.stages * self._form.shards
        members = self._members()
        self._epoch = max(self._epoch + 1, time.time_ns() // 1_000_000)
        with self._exchange(replace(self._form, epoch=self._epoch), self._offers(members)) as form:
            forms = [
                replace(form, stage=position // form.shards, shard=position % form.shards) for position in range(size)
            ]
            for device, form in zip(members, forms[1:], strict=True):
                device.answer = None
                device.link.send(form)
            try:
                own = await self._part.load(forms[0])
                await self._part.join(forms[0])
            except MeshError:
                self._refusals.refused(self._host.id, 0, time.monotonic())
                raise
            await self._decided(members)
        for device in members:
            if isinstance(device.answer, g.GroupRefused):
                self._part.break_up()
                self._refusals.refused(device.link.device_id, device.incarnation, time.monotonic())
                raise MeshError(f"{device.link.device_id} cannot compute its part: {device.answer.reason}")
            if isinstance(device.answer, g.GroupBroken):
                _log.warning("group_not_formed", device=device.link.device_id, reason=device.answer.reason)
                self._part.break_up()
        if any(map(_is_gone, members)) or not (self._part.is_whole and self._part.is_complete):
            self._part.break_up()
            return False
        for name in (self._host.id, *self._positions):
            self._refusals.joined(name)
        self._show_trouble("")
        self._show_place(self._part.place(forms[0]))
        joined = [device.answer for device in members if isinstance(device.answer, g.GroupJoined)]
        shares = tuple(answer.share for answer in joined)
        self.loaded = (own, *(answer.loaded for answer in joined))
        self._engine.formed([device.link for device in members], self._epoch, shares)
        _log.info("group_formed", epoch=self._epoch, stages=self._form.stages, shards=self._form.shards)
        return True

    def _show_trouble(self, trouble: str) -> None:
        self._host.introduce(trouble=trouble)
        self._host.beat_soon()

    def _show_place(self, place: DevicePlace | None) -> None:
        self._host.introduce(place=place)
        self._host.beat_soon()
        self._on_place(place)

    async def _decided(self, members: list[_Device]) -> None:
        """Wait until the group is whole, or will never be. Members that have joined, as one that hears of all others knows, and
        still do not hear of each other after a while, break it.
        """
        heard_s: float | None = None

        def is_decided() -> bool:
            nonlocal heard_s
            answers = [device.answer for device in members]
            if not self._part.is_whole or any(map(_is_gone, members)) or all(answer is not None for answer in answers):
                return True
            if any(isinstance(answer, g.GroupRefused | g.GroupBroken) for answer in answers):
                return True
            if heard_s is None and (self._part.is_complete or any(answer is not None for answer in answers)):
                heard_s = time.monotonic()
            if heard_s is not None and time.monotonic() - heard_s > _HEAR_S:
                self._part.break_up()
            return not self._part.is_whole

        await self._look_until(is_decided)
        if all(isinstance(device.answer, g.GroupJoined) for device in members):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEAR_S):
                    await self._part.completed()

    def _members(self) -> list[_Device]:
        """Return the devices by position."""
        return [self._devices[name] for name in sorted(self._positions, key=self._positions.__getitem__)]

    def _offers(self, members: list[_Device]) -> list[g.DeviceOffered]:
        return [self._offer, *(device.offer for device in members if device.offer is not None)]

    def _give_positions(self) -> None:
        """Give the leader 0, and each device one of the others, the one that it has had if any."""
        if self._device_ids:
            self._positions = {name: position for position, name in enumerate(self._device_ids, 1)}
            return
        ready = self._ready
        kept = {name: position for name, position in self._positions.items() if name in ready}
        size = self._form.stages * self._form.shards
        free = [position for position in range(1, size) if position not in kept.values()]
        fresh = [name for name in ready if name not in kept]
        self._positions = kept | dict(zip(fresh, free, strict=False))

    async def _look_until(self, is_done: Callable[[], bool]) -> None:
        """Look for new devices, and for those that are gone, until something is the case."""
        while not is_done():
            self._news.clear()
            await self._look()
            if is_done():
                return
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        if self._is_leaving:
            return
        try:
            store = self._host.store
            members = await (store.registered(self._device_ids) if self._device_ids else store.members())
        except MeshError:
            return  # those that are there stay
        found = {member.id: member for member in members if self._is_mine(member)}
        now_s = time.monotonic()
        for name, device in list(self._devices.items()):
            if name not in found:
                _log.warning("device_expired", device=name)
                await self._drop(device)
        for name, member in found.items():
            known = self._devices.get(name)
            if known is not None and known.incarnation >= member.incarnation:
                continue
            if known is not None:
                await self._drop(known)
            elif now_s - self._called_s.get(name, -math.inf) < _CALL_AGAIN_S:
                continue
            self._called_s[name] = now_s
            access = control_access(self._host.settings)
            link = DeviceLink(self._host.id, name, member.grpc_address, self._reported, self._lost, access)
            self._devices[name] = _Device(link, member.incarnation)

    def _is_mine(self, member: Member) -> bool:
        if member.kind is not MemberKind.DEVICE or member.state is not MemberState.READY:
            return False
        if self._device_ids or member.id in self._devices:
            return True  # it may have another leader by now, too
        return member.leader_id == self._host.id and member.id != self._offer.device_id

    async def _drop(self, device: _Device) -> None:
        self._devices.pop(device.link.device_id, None)
        self._news.set()
        await device.link.close()

    def _reported(self, link: DeviceLink, report: g.GroupReport) -> None:
        device = self._devices.get(link.device_id)
        if device is None or device.link is not link:
            return
        match report:
            case g.DeviceOffered():
                device.offer = report
            case g.GroupJoined() | g.GroupRefused() | g.GroupBroken() if report.epoch == self._epoch:
                device.answer = report
            case _:
                self._engine.reported(report)
                return
        self._news.set()

    def _lost(self, link: DeviceLink, reason: str) -> None:
        device = self._devices.get(link.device_id)
        if device is not None and device.link is link:
            if device.offer is not None and not self._is_leaving:
                _log.warning("device_gone", device=link.device_id, reason=reason)
            del self._devices[link.device_id]
            self._engine.lose(f"{link.device_id} is gone")
            self._host.spawn(link.close(), "close_device")
        self._news.set()


def _is_gone(device: _Device) -> bool:
    return not device.link.is_alive
