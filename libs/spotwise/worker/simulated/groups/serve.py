"""Runs a process of simulated devices, which lead workers and are in groups as any device is: its settings and its view."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial

import psutil
from pydantic import Field

from spotwise.core.costs.batching import Batch
from spotwise.core.costs.cost_model import IterationCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.core.fleet.types import FleetType
from spotwise.core.messages import mesh as m
from spotwise.core.messages.groups import DeviceOffered, FormGroup, GroupOrder, GroupReport
from spotwise.core.messages.members import DevicePlace, MemberKind
from spotwise.core.parallel.config import ParallelConfig
from spotwise.core.parallel.scaled_cost import GroupCost
from spotwise.core.requests.record import KvShare, RequestRecord
from spotwise.core.requests.sampling import SampledToken
from spotwise.mesh.grpc.control import EngineDescription, RecentIterations
from spotwise.mesh.grpc.device_control import DeviceLink, Report, device_handler
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.run import control_access
from spotwise.worker.groups.formation import GroupFormation
from spotwise.worker.groups.group_orders import report_formed, unformed
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.runtime import RuntimeView
from spotwise.worker.settings import WorkerSettings
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.groups.part import SimulatedPart, SimulatedParts, simulated_model
from spotwise.worker.simulated.serving import served_words, simulated_engine, started_simulated_worker
from spotwise.worker.simulated.settings import SimulatedWorkerSettings

_IDS = r"^([A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*)?$"


class SimulatedGroupEngine(SimulatedEngine):
    """A `FormedEngine` that takes the time of a cost profile; only the leader has it, and its devices get no steps."""

    _is_whole = False
    _on_lost: Callable[[str], None] = staticmethod(lambda reason: None)
    _on_restored: Callable[[], None] = staticmethod(lambda: None)

    def watch(self, on_lost: Callable[[str], None], on_restored: Callable[[], None]) -> None:
        """See `WorkerEngine`."""
        self._on_lost, self._on_restored = on_lost, on_restored
        if self._is_whole:
            on_restored()
        else:
            on_lost("its group is not whole")

    def formed(self, links: Sequence[DeviceLink], epoch: int, shares: tuple[KvShare, ...]) -> None:
        """See `FormedEngine`."""
        self._is_whole = True
        self._on_restored()

    def lose(self, reason: str) -> None:
        """See `FormedEngine`."""
        if self._is_whole:
            self._is_whole = False
            self._on_lost(reason)
            self.drop_all(reason)

    def reported(self, report: GroupReport) -> None:
        """Nothing: devices report no work."""

    async def add_sequence(self, record: RequestRecord, prepared: None = None) -> None:
        """Add a sequence; raises `ValueError` where the engine refuses it, `MeshError` where the group is not whole."""
        if not self._is_whole:
            raise MeshError("the group is not whole")
        await super().add_sequence(record)

    def run_iteration(
        self,
        batch: Batch,
        on_finished: Callable[[tuple[SampledToken, ...]], None],
        on_failed: Callable[[Exception], None],
        on_layers: Callable[[int], None] | None = None,
    ) -> None:
        """Run a batch, unless the group is not whole: the role learns that at the same time."""
        if self._is_whole:
            super().run_iteration(batch, on_finished, on_failed, on_layers)


class SimulatedDeviceSettings(SimulatedWorkerSettings):
    """The devices of one process: those of whole groups of P x M, and spare ones."""

    groups: str = Field(
        "",
        pattern=_IDS,
        description="comma-separated ids of workers that are groups of simulated devices of this process from its start",
    )
    spares: str = Field(
        "",
        pattern=_IDS,
        description="comma-separated ids of further simulated devices of this process, which wait for a re-shape",
    )

    @property
    def first_leaders(self) -> dict[str, str]:
        """The worker whose group each device is in from the start, by device; the empty id for a spare one."""
        workers = [worker_id for worker_id in self.groups.split(",") if worker_id]
        led = {device_id: worker_id for worker_id in workers for device_id in self.devices_of(worker_id)}
        return led | dict.fromkeys(filter(None, self.spares.split(",")), "")

    def devices_of(self, worker_id: str) -> tuple[str, ...]:
        """Return the devices of a worker from the start, by position; the first leads it."""
        return tuple(f"{worker_id}-device-{number}" for number in range(self.group_size))


class SimulatedDevicesView:
    """An `EngineView` of the devices of a process, by id, and of the workers that they lead."""

    def __init__(self, devices: Mapping[str, DeviceProcess], workers: RuntimeView) -> None:
        self._devices = devices
        self._workers = workers

    def describe(self, member_id: str) -> EngineDescription | None:
        """Describe a worker or a device."""
        device = self._devices.get(member_id)
        if device is None:
            return self._workers.describe(member_id)
        return EngineDescription(
            member=device.host.member,
            engine_sequences=0,
            resident_bytes=psutil.Process().memory_info().rss,
            iterations=0,
            engine="simulated",
            kv_bytes_per_token=0,
            times=None,
        )

    def iterations(self, member_id: str, after: int) -> RecentIterations | None:
        """Return a worker's iterations; a device has none of its own."""
        return RecentIterations(0, ()) if member_id in self._devices else self._workers.iterations(member_id, after)


async def serve_simulated_devices(settings: SimulatedDeviceSettings) -> None:
    """Join the mesh as every device of the settings, and compute until a stop signal, or until all have left."""
    words = served_words(settings)
    costs = settings.costs()
    model = simulated_model(settings.served_name, costs.kv_bytes_per_token)
    view = RuntimeView()
    leaders = settings.first_leaders
    devices: dict[str, DeviceProcess] = {}

    async def follow(device_id: str, leader_id: str, orders: AsyncIterator[GroupOrder], report: Report) -> None:
        if (device := devices.get(device_id)) is not None:
            await device.follow(leader_id, orders, report)

    @contextlib.asynccontextmanager
    async def device(host: ServiceHost) -> AsyncIterator[None]:
        leader_id = leaders[host.id]
        host.introduce(model=settings.served_name, leader_id=leader_id, numerics=settings.numerics)
        parts = SimulatedParts(model)
        lead = partial(_lead, settings, costs, words, view, parts)
        process = DeviceProcess(group, host, settings, parts, "", lead)
        devices[host.id] = process
        try:
            await process.start(leader_id if leader_id and host.id == settings.devices_of(leader_id)[0] else None)
            yield
        finally:
            del devices[host.id]
            await process.close()

    both = SimulatedDevicesView(devices, view)
    async with ServiceGroup.open(settings, both, device_handler(follow, control_access(settings))) as group:
        await group.run(tuple(leaders), MemberKind.DEVICE, device)


async def _lead(
    simulated: SimulatedDeviceSettings,
    costs: CostProfile,
    words: tuple[int, ...],
    view: RuntimeView,
    parts: SimulatedParts,
    process: DeviceProcess,
    settings: WorkerSettings,
    kind: MemberKind,
    order: m.LeadGroup | None,
) -> bool:
    """Join the mesh as a worker, and serve until it leaves; see `lead_worker`. A group takes the time that a planner expects of
    its shape by the profile of a device, and has the profile's KV blocks.
    """
    settings = simulated.model_copy(update=settings.model_dump(include={"service_id", "pool", "stages", "shards"}))
    async with process.members.joined(settings, kind) as host, contextlib.AsyncExitStack() as stack:
        host.introduce(pool=settings.pool, model=settings.served_name)
        shape = f", {settings.stages} stages of {settings.shards} shards"
        engine = simulated_engine(
            SimulatedGroupEngine,
            settings,
            costs,
            words,
            shape,
            group_cost(settings, costs, settings.stages, settings.shards),
        )
        stack.callback(engine.close)
        formation = GroupFormation(
            host,
            SimulatedPart(parts),
            engine,
            unformed(settings, host.id, settings.dtype, None, order),
            process.offer,
            _no_exchange,
            settings.devices_of(host.id)[1:] if order is None else order.device_ids[1:],
            lambda place: _note_place(process, host.id, place),
        )
        process.forms(host.id, formation.give_up)
        stack.push_async_callback(formation.close)
        await formation.offers()
        await formation.form(engine.num_blocks, engine.host_blocks)
        report_formed(host, order, formation.loaded)
        host.spawn(formation.keep(), "keep_group")
        runtime = await started_simulated_worker(settings, costs, host, engine, view, stack)
        process.serves(host.id)
        await host.serve()
        await formation.leave(devices_stay=runtime.devices_stay)
        return runtime.devices_stay


def group_cost(settings: SimulatedDeviceSettings, costs: CostProfile, stages: int, shards: int) -> IterationCost | None:
    """Return what iterations of a group cost whose devices are instances of their own; `None`: what the profile says."""
    if stages * shards == 1:
        return None
    model = simulated_model(settings.served_name, costs.kv_bytes_per_token)
    scaled = FleetType("device", 1, None, 0.0, costs).measured.scaled_cost(model, context_tokens=1)
    return GroupCost(scaled, ParallelConfig(1, stages, shards), settings.speed)


def _note_place(process: DeviceProcess, leader_id: str, place: DevicePlace | None) -> None:
    if place is None:
        process.left(leader_id)
    else:
        process.entered(leader_id, place)


@contextlib.contextmanager
def _no_exchange(form: FormGroup, offers: Sequence[DeviceOffered]) -> Iterator[FormGroup]:
    """Return the order: nothing is exchanged."""
    yield form
