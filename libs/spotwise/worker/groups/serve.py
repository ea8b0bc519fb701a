"""Runs a process of groups: a device, which may lead a worker from its start; and engine control's view of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

import psutil

from spotwise.core.messages.groups import GroupOrder
from spotwise.core.messages.members import MemberKind
from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.mesh.grpc.device_control import Report, device_handler
from spotwise.mesh.links.group_sockets import GroupSockets
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.run import control_access
from spotwise.worker.claimed_numerics import agreed_settings
from spotwise.worker.groups.device_parts import DeviceParts
from spotwise.worker.groups.group_numerics import group_numerics
from spotwise.worker.groups.leading import lead_worker
from spotwise.worker.groups.model_sketch import model_of_others
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.groups.settings import DeviceSettings
from spotwise.worker.placement import place_process
from spotwise.worker.runtime import RuntimeView
from spotwise.worker.settings import WorkerSettings


class ProcessView:
    """An `EngineView` of one process.

    Args:
        device_id: id of its device.
        workers: workers that it leads.
    """

    def __init__(self, device_id: str, workers: RuntimeView) -> None:
        self._device_id = device_id
        self._workers = workers
        self._process: DeviceProcess | None = None
        self._parts: DeviceParts | None = None

    def show(self, process: DeviceProcess, parts: DeviceParts) -> None:
        """Describe the device by its process, and by its part in the newest group, from now on."""
        self._process, self._parts = process, parts

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker or the device; the device's iterations are its leader's."""
        if member_id != self._device_id:
            return self._workers.describe(member_id)
        if self._process is None or self._parts is None:
            return None
        part = self._parts.part(self._process.newest_leader)
        engine = None if part is None else part.loaded
        return EngineDescription(
            member=self._process.host.member,
            engine_sequences=0 if engine is None else engine.num_sequences,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=0,
            engine="nothing loaded" if engine is None else engine.computes_with,
            kv_bytes_per_token=0 if engine is None else engine.kv_bytes_per_token,
            times=None if part is None else part.times(),
        )

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations; a device has none of its own: the leader measures the group's."""
        if member_id == self._device_id:
            return RecentIterations(0, ())
        return self._workers.iterations(member_id, after)


async def serve_device(settings: DeviceSettings) -> None:
    """Join the mesh as a device, and compute for leaders until a stop signal."""
    await _serve(settings, settings.leader_id, leads=False, has_folder=settings.has_folder)


async def serve_leader(settings: WorkerSettings) -> None:
    """Join the mesh as a device, `<id>-device-0`, that leads the worker of these settings, until a stop signal or the end of
    the worker's drain; another deployment that is planned meanwhile takes the place of that worker.
    """
    device = settings.model_copy(update={"service_id": f"{settings.service_id}-device-0"})
    await _serve(device, settings.service_id, leads=True)


async def _serve(settings: WorkerSettings, leader_id: str, *, leads: bool, has_folder: bool = True) -> None:
    cores = place_process(settings)
    runtimes = RuntimeView()
    view = ProcessView(settings.service_id, runtimes)
    process: DeviceProcess | None = None

    async def follow(device_id: str, leader_id: str, orders: AsyncIterator[GroupOrder], report: Report) -> None:
        if process is not None:
            await process.follow(leader_id, orders, report)

    async with contextlib.AsyncExitStack() as stack:
        sockets = await stack.enter_async_context(
            GroupSockets.open(settings.bind_host, settings.exchange_port, settings.peer_host, settings.link_security())
        )
        members = await stack.enter_async_context(
            ServiceGroup.open(settings, view, device_handler(follow, control_access(settings)))
        )
        if not has_folder:
            settings = await stack.enter_async_context(model_of_others(settings, members.store))
        host = await stack.enter_async_context(members.joined(settings, MemberKind.DEVICE))
        host.introduce(model=settings.served_name, leader_id=leader_id, cores=cores)
        settings = await agreed_settings(settings, host)
        host.introduce(numerics=group_numerics(settings))
        parts = DeviceParts(settings, sockets, host)
        lead = partial(lead_worker, runtimes, parts)
        process = DeviceProcess(members, host, settings, parts, sockets.address, lead)
        stack.push_async_callback(process.close)
        host.introduce(transfer_address=await parts.weights.start())
        view.show(process, parts)
        await process.serve(leader_id if leads else None)
