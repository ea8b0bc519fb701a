"""Runs the processes of a group: its devices, and the leader's engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import structlog

from spotwise.core.group_messages import DeviceOffered, FormGroup, GroupOrder
from spotwise.core.members import MemberKind
from spotwise.engine.errors import ModelError
from spotwise.engine.loading import EngineConfig
from spotwise.engine.part_sizes import PartSizes
from spotwise.engine.weight_store import WeightStore
from spotwise.mesh.device_control import device_handler
from spotwise.mesh.group_sockets import GroupSockets
from spotwise.mesh.ports import MeshError
from spotwise.mesh.service import ServiceHost
from spotwise.worker.groups.device import GroupDevice, Report
from spotwise.worker.groups.device_view import DeviceView
from spotwise.worker.groups.formation import GroupFormation
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.groups.group_part import GroupPart
from spotwise.worker.groups.settings import DeviceSettings
from spotwise.worker.machine import free_memory_bytes, machine_id
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)


async def serve_device(settings: DeviceSettings) -> None:
    """Join the mesh and compute for the leader until a stop signal."""
    if settings.core_ids:
        os.sched_setaffinity(0, settings.core_ids)
    device: GroupDevice | None = None

    async def follow(orders: AsyncIterator[GroupOrder], report: Report) -> None:
        if device is not None:
            await device.follow(orders, report)

    async with contextlib.AsyncExitStack() as stack:
        sockets = await stack.enter_async_context(_sockets(settings))
        part = GroupPart(WeightStore(engine_config(settings)), settings.niceness, sockets, settings.group_patience_s)
        handler = device_handler(follow)
        view = DeviceView(part)
        host = await stack.enter_async_context(ServiceHost.open(settings, MemberKind.DEVICE, view, handler))
        host.introduce(model=settings.served_name, leader_id=settings.leader_id)
        host.describe_with(view.seen)
        stack.push_async_callback(part.close)
        device = GroupDevice(host, part, settings, _offer(settings, host, sockets))
        await host.run()


@contextlib.asynccontextmanager
async def leading_group(settings: WorkerSettings, host: ServiceHost) -> AsyncIterator[GroupEngine]:
    """Wait for the devices of this worker's group and form it, again whenever it is broken; raises `MeshError` where the model
    cannot be served, or cannot be cut like this.
    """
    store = WeightStore(engine_config(settings))
    try:
        sizes = PartSizes.of(store, settings.stages, settings.shards)
    except (ModelError, ValueError) as error:
        raise MeshError(f"the model cannot be served: {error}") from error
    async with _sockets(settings) as sockets:
        part = GroupPart(store, settings.niceness, sockets, settings.group_patience_s)
        engine = GroupEngine(part, settings.stages, settings.shards)
        offer = _offer(settings, host, sockets)
        formation = GroupFormation(host, part, engine, _form(settings, host, sizes), offer, settings.group_exchange)
        try:
            _log.info("waiting_for_devices", devices=settings.group_size - 1)
            offers = await formation.offers()
            num_blocks = sizes.blocks([offer.kv_cache_bytes for offer in offers])
            host_blocks = sizes.blocks([offer.kv_host_bytes for offer in offers])
            if num_blocks < 1:
                raise MeshError("kv_cache_bytes of a member do not hold one block of its part; give the group more")
            await formation.form(num_blocks, host_blocks if settings.swaps else 0)
            host.spawn(formation.keep(), "keep_group")
            yield engine
            await formation.leave()  # not after an error: a leader that is started again finds them
        finally:
            await formation.close()
            await part.close()


def _form(settings: WorkerSettings, host: ServiceHost, sizes: PartSizes) -> FormGroup:
    """Return the order to form the group, but for what its devices decide."""
    return FormGroup(
        epoch=0,
        leader_id=host.id,
        stages=settings.stages,
        shards=settings.shards,
        stage=0,
        shard=0,
        exchange="",
        num_blocks=0,
        host_blocks=0,
        block_size=settings.kv_block_size,
        dtype=sizes.dtype,
        model_digest=sizes.digest,
    )


def _offer(settings: WorkerSettings, host: ServiceHost, sockets: GroupSockets) -> DeviceOffered:
    host_bytes = settings.host_bytes(free_memory_bytes())
    return DeviceOffered(host.id, settings.kv_cache_bytes, host_bytes, machine_id(), sockets.address)


def _sockets(settings: WorkerSettings) -> contextlib.AbstractAsyncContextManager[GroupSockets]:
    return GroupSockets.open(settings.bind_host, settings.exchange_port, settings.peer_host)


def engine_config(settings: WorkerSettings) -> EngineConfig:
    """Return how a worker's process loads its model."""
    return EngineConfig(
        model_dir=settings.model_dir,
        dtype=settings.dtype,
        device=settings.device,
        kv_cache_bytes=settings.kv_cache_bytes,
        block_size=settings.kv_block_size,
        threads=settings.threads,
        decode_graphs=settings.decode_graphs,
        shared_weights=settings.shared_weights,
    )
