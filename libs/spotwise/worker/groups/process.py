"""A process of groups: one device of the mesh, the parts that it computes, and the workers that it leads.

The device outlives its groups. Of each leader it has a part at most; of the workers that it leads, each is a member of the mesh
of its own, for as long as its group serves. What a part is, with an engine (`device_parts.py`) or simulated, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import structlog

from spotwise.core.messages import mesh as m
from spotwise.core.messages.groups import DeviceOffered, GroupOrder
from spotwise.core.messages.members import DevicePlace, MemberKind, Pool
from spotwise.core.parallel.model_shape import ModelShape
from spotwise.mesh.grpc.device_control import Report
from spotwise.mesh.ports.ports import BusMessage, MeshError
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import call_on_stop_signals
from spotwise.wire import subjects
from spotwise.worker.groups.formation import NotWantedError
from spotwise.worker.machine import free_memory_bytes, machine_id
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)

#: Interval at which a process under notice looks whether it is free to leave.
_LOOK_S = 0.2

#: What a device's inbox takes.
_TO_INBOX = frozenset((m.SurveyDevice, m.LeadGroup))

#: Serves a worker whose group this process leads, by a planner's order or from its start (`None`), until it leaves; returns
#: whether the devices stay.
Lead = Callable[["DeviceProcess", WorkerSettings, MemberKind, m.LeadGroup | None], Awaitable[bool]]


class Parts(Protocol):
    """The parts of the model that a device computes, of each leader one at most."""

    async def shape(self) -> ModelShape:
        """Return the shape of the model, named as it is served; raises `MeshError` where it cannot be served."""

    async def follow(
        self, device: DeviceProcess, leader_id: str, orders: AsyncIterator[GroupOrder], report: Report
    ) -> None:
        """Carry out the orders of one leader's stream, until they end."""

    async def free(self, leader_id: str) -> None:
        """Give back what a leader's part takes: it forms no further group. Idempotent."""

    async def give_back(self) -> None:
        """Give back the weights that no part needs any more."""

    async def close(self) -> None:
        """Free all parts."""


class DeviceProcess:
    """One process.

    Args:
        members: its connections to the mesh.
        host: its device.
        settings: settings of the device; `settings.pool` and P x M are those of its first worker, if it leads one.
        parts: what it computes.
        exchange_address: where it takes the connections of a group's members, `host:port`.
        lead: serves a worker.
    """

    def __init__(
        self,
        members: ServiceGroup,
        host: ServiceHost,
        settings: WorkerSettings,
        parts: Parts,
        exchange_address: str,
        lead: Lead,
    ) -> None:
        self.members = members
        self.host = host
        self.settings = settings
        kv_bytes = settings.offered_kv_bytes(free_memory_bytes())
        self.offer = DeviceOffered(
            host.id,
            kv_bytes,
            settings.host_bytes(free_memory_bytes(), kv_bytes),
            machine_id(),
            exchange_address,
        )
        self._parts = parts
        self._lead = lead
        self._places: dict[str, DevicePlace] = {}
        self._first_leader_id = host.member.leader_id
        self._led: dict[str, asyncio.Task[None]] = {}
        self._forming: dict[str, Callable[[], None]] = {}
        self._shape: ModelShape
        self._is_starting = False
        self._latest = (0, 0)  # term and change of the last order to lead
        self._leaves_at_s: float | None = None  # under notice: when it leaves at the latest
        host.describe_with(self._described)

    async def follow(self, leader_id: str, orders: AsyncIterator[GroupOrder], report: Report) -> None:
        """Carry out the orders of one leader's stream."""
        report(self.offer)
        await self._parts.follow(self, leader_id, orders, report)

    async def free_part(self, leader_id: str) -> None:
        """Give back what a part takes: its leader forms no further group."""
        await self._parts.free(leader_id)

    @property
    def newest_leader(self) -> str | None:
        """The leader of the newest group that it is in; `None`: it is in none."""
        return max(self._places, key=lambda leader_id: self._places[leader_id].epoch, default=None)

    def entered(self, leader_id: str, place: DevicePlace) -> None:
        """Note the device's place in a leader's group."""
        self._places[leader_id] = place
        self._show_place()
        self.host.spawn(self._parts.give_back(), "give_back_weights")

    def left(self, leader_id: str) -> None:
        """Note that the device is in no group of this leader; idempotent."""
        if self._places.pop(leader_id, None) is not None:
            self._show_place()

    def _show_place(self) -> None:
        """Report the place in the newest group."""
        newest = self.newest_leader
        self.host.introduce(
            place=None if newest is None else self._places[newest],
            leader_id=self._first_leader_id if newest is None else newest,
        )
        self.host.beat_soon()

    async def serve(self, first: str | None) -> None:
        """Serve until a stop signal, after `start`; raises `MeshError` as that, or where a worker failed."""
        call_on_stop_signals(self.members.leave, self.members.stop)
        await self.start(first)
        await self.host.serve()

    async def start(self, first: str | None) -> None:
        """Take orders. `first`: the worker that it leads from the start, unless another deployment is planned.

        Raises:
            MeshError: the model cannot be served.
        """
        # First of all: it must not be found beside a part that computes.
        self._shape = await self._parts.shape()
        self.host.leave = self._leave_last
        await self.host.listen(subjects.inbox(self.host.id), self._on_message, expects=_TO_INBOX)
        await self.host.listen(subjects.NOTICES, self._on_message, expects=(m.Drain,))
        if first is not None and not await self._is_deployed_otherwise():
            self._is_starting = True
            settings = self.settings.model_copy(update={"service_id": first})
            self._begin(first, self._serve_worker(settings, None))

    async def close(self) -> None:
        """Leave every group; the workers that it leads have ended then."""
        led = list(self._led.values())
        for task in led:
            task.cancel()
        await asyncio.gather(*led, return_exceptions=True)
        await self._parts.close()

    async def _is_deployed_otherwise(self) -> bool:
        """Whether a planner has decided which groups there are: then it says what this process leads."""
        plan = await self.members.store.get_plan()
        return plan is not None and plan.deployment is not None

    def forms(self, worker_id: str, give_up: Callable[[], None]) -> None:
        """Note that the group of a worker that this process leads is being formed; a drain of the worker calls `give_up`."""
        self._forming[worker_id] = give_up

    def serves(self, worker_id: str) -> None:
        """Note that a worker that this process leads serves, and hears its own drain."""
        del self._forming[worker_id]
        if self._is_starting:
            self._is_starting = False
            self.host.beat_soon()

    def _described(self, member: m.Member) -> m.Member:
        """A process that leads from its start has started once its worker serves."""
        if self._leaves_at_s is not None:
            return replace(member, state=m.MemberState.DRAINING, leaves_at_s=self._leaves_at_s)
        return replace(member, state=m.MemberState.STARTING) if self._is_starting else member

    def _leave_last(self) -> None:
        """Leave once the workers that this process leads have left; at once where its first one does not serve yet."""
        if self._is_starting or not self._led:
            self.host.stop()

    async def _on_message(self, message: m.Message, raw: BusMessage) -> None:
        match message:
            case m.SurveyDevice():
                self._answer(message)
            case m.LeadGroup():
                self._lead_group(message)
            case m.Drain(worker_id, deadline_s) if worker_id == self.host.id:
                self._drain(deadline_s - self.host.clock.ahead_s)
            case m.Drain(worker_id) if (give_up := self._forming.get(worker_id)) is not None:
                if not 0 < message.term < self._latest[0]:
                    give_up()

    def _answer(self, survey: m.SurveyDevice) -> None:
        groups = tuple(m.GroupMembership(*each) for each in sorted(self._places.items()))
        member = self.host.member
        surveyed = m.DeviceSurveyed(member.id, member.incarnation, survey.number, self._shape, groups)
        self.host.send(survey.sender_id, surveyed)

    def _drain(self, deadline_s: float) -> None:
        """Take no further position, and leave once this process is in no group, or at the deadline: by then its groups are
        formed anew without it.
        """
        if self._leaves_at_s is None:
            self._leaves_at_s = deadline_s
            self.host.spawn(self._leave_when_free(), "leave_when_free")
        self._leaves_at_s = min(self._leaves_at_s, deadline_s)
        self.host.beat_soon()

    async def _leave_when_free(self) -> None:
        while self._leaves_at_s is None or self.host.clock.now() < self._leaves_at_s:
            await asyncio.sleep(_LOOK_S)
            if not self._places and not self._led:
                break
        self.host.stop()

    def _lead_group(self, order: m.LeadGroup) -> None:
        is_stale = (order.term, order.change) < self._latest
        if order.device_ids[:1] != (self.host.id,) or is_stale or self._leaves_at_s is not None:
            _log.warning("order_refused", worker=order.worker_id, change=order.change, term=order.term)
            return
        self._latest = (order.term, order.change)
        if order.worker_id in self._led:
            return
        _log.info("leading", worker=order.worker_id, change=order.change, stages=order.stages, shards=order.shards)
        settings = self.settings.model_copy(
            update={
                "service_id": order.worker_id,
                "pool": order.pool,
                "stages": order.stages,
                "shards": order.shards,
                "transfer_port": 0,  # the first worker's may still be in use
            }
        )
        self._begin(order.worker_id, self._serve_worker(settings, order))

    def _begin(self, worker_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Serve a worker in the background; an error that was not foreseen ends the process."""
        task = self._led[worker_id] = asyncio.create_task(work, name=worker_id)

        def ended(_: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("leading_failed", worker=worker_id, exc_info=error)
                self.host.fail(f"{worker_id} cannot be led: {error}")

        task.add_done_callback(ended)

    async def _serve_worker(self, settings: WorkerSettings, order: m.LeadGroup | None) -> None:
        worker_id = settings.service_id
        structlog.contextvars.bind_contextvars(member=worker_id)
        kind = MemberKind.PROMPT_WORKER if settings.pool is Pool.PROMPT else MemberKind.TOKEN_WORKER
        devices_stay = True
        try:
            devices_stay = await self._lead(self, settings, kind, order)
        except NotWantedError as error:
            _log.info("leading_ended", reason=str(error))
        except MeshError as error:
            if order is None:
                self.host.fail(str(error))
            else:
                _log.error("cannot_lead", reason=str(error))
        finally:
            self.left(worker_id)
            self._forming.pop(worker_id, None)
            await self.free_part(worker_id)
            del self._led[worker_id]
        if not devices_stay:
            self.host.stop()
