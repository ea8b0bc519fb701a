"""Leads a group: forms it of this process and others, over memory or TCP, and serves it as a worker of the mesh."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog

from spotwise.core.messages import mesh as m
from spotwise.core.messages.groups import DeviceOffered, FormGroup, GroupExchange
from spotwise.core.messages.members import DevicePlace, MemberKind
from spotwise.core.requests.record import KvShare
from spotwise.engine.model.errors import ModelError
from spotwise.engine.native.exchange import MemoryExchange
from spotwise.engine.native.library import load_kernels
from spotwise.engine.parts.part_sizes import PartSizes
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.groups.device_parts import DeviceParts
from spotwise.worker.groups.formation import GroupFormation
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.groups.group_kv import GroupKvTransport
from spotwise.worker.groups.group_numerics import group_numerics
from spotwise.worker.groups.group_orders import report_formed, unformed
from spotwise.worker.groups.process import DeviceProcess
from spotwise.worker.runtime import RuntimeView
from spotwise.worker.serving import started_worker
from spotwise.worker.settings import WorkerSettings

_log = structlog.get_logger(__name__)


@contextlib.contextmanager
def with_exchange(form: FormGroup, offers: Sequence[DeviceOffered], choice: GroupExchange) -> Iterator[FormGroup]:
    """Return the order with the exchange of members that offer this, by position; what they need to join it is there within
    the block. Raises `MeshError` without native kernels.
    """
    if choice == GroupExchange.TCP or (choice == GroupExchange.AUTO and len({offer.machine for offer in offers}) > 1):
        addresses = tuple(offer.exchange_address for offer in offers)
        yield replace(form, exchange=secrets.token_hex(16), addresses=addresses)
        return
    memory = SharedMemory(len(offers))
    try:
        yield replace(form, exchange=memory.path, addresses=())
    finally:
        memory.close()


class SharedMemory:
    """The memory of one group's exchange, made by its leader; members open it through the leader's process, and nothing is left
    behind. Raises `MeshError` without native kernels.
    """

    def __init__(self, members: int) -> None:
        kernels = load_kernels()
        if kernels is None:
            raise MeshError("a group needs the native kernels; install g++ on this machine")
        self._handle = os.memfd_create("spotwise-exchange")
        os.ftruncate(self._handle, MemoryExchange.bytes(kernels, members))

    @property
    def path(self) -> str:
        """Where members of this machine open it."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    def close(self) -> None:
        """Close it; members that have opened it keep it."""
        os.close(self._handle)


async def lead_worker(
    view: RuntimeView,
    parts: DeviceParts,
    process: DeviceProcess,
    settings: WorkerSettings,
    kind: MemberKind,
    order: m.LeadGroup | None,
) -> bool:
    """Join the mesh as a worker, and serve with this process's group until the worker leaves.

    Args:
        view: shows the worker to engine control.
        parts: parts of the process.
        process: leads.
        settings: settings of the worker: its id, its pool, P and M.
        kind: kind of the worker.
        order: a planner's order, which names the other processes; `None`: they are those that register with the worker's id.

    Returns:
        Whether the group's processes stay in the mesh.

    Raises:
        MeshError: the model cannot be cut like this, a process refuses its part, or the worker failed.
    """
    async with process.members.joined(settings, kind) as host, contextlib.AsyncExitStack() as stack:
        host.introduce(pool=settings.pool, model=settings.served_name, cores=process.host.member.cores)
        formation, engine = await stack.enter_async_context(_formed_group(parts, process, settings, host, order))
        memory = engine.engine.kv
        own_share = partial(KvShare, host.id, host.member.incarnation, part=memory.part)
        runtime = await started_worker(
            settings,
            host,
            engine,
            view,
            stack,
            lambda of_this_process, on_handoff: GroupKvTransport(
                of_this_process, own_share, engine, on_handoff, memory.num_layers
            ),
        )
        process.serves(host.id)
        await host.serve()
        await formation.leave(devices_stay=runtime.devices_stay)  # not after an error: it may be started again
        return runtime.devices_stay


@contextlib.asynccontextmanager
async def _formed_group(
    parts: DeviceParts,
    process: DeviceProcess,
    settings: WorkerSettings,
    host: ServiceHost,
    order: m.LeadGroup | None,
) -> AsyncIterator[tuple[GroupFormation, GroupEngine]]:
    """Wait for the devices and form the group, again whenever it is broken."""
    try:
        sizes = PartSizes.of(parts.store, settings.stages, settings.shards)
    except (ModelError, ValueError) as error:
        raise MeshError(f"the model cannot be served: {error}") from error

    def place_changed(place: DevicePlace | None) -> None:
        if place is None:
            process.left(host.id)
        else:
            process.entered(host.id, place)

    usable = settings.max_num_seqs * -(-sizes.context_length // settings.kv_block_size)

    def blocks(offers: Sequence[DeviceOffered]) -> int:
        return min(sizes.blocks([offer.kv_cache_bytes for offer in offers]), usable)

    async with parts.part_of(host.id) as part:
        engine = GroupEngine(part, settings.stages, settings.shards)
        formation = GroupFormation(
            host,
            part,
            engine,
            unformed(settings, host.id, sizes.dtype, sizes.digest, order, group_numerics(settings, sizes.dtype).name),
            process.offer,
            partial(with_exchange, choice=settings.group_exchange),
            () if order is None else order.device_ids[1:],
            place_changed,
            blocks,
        )
        process.forms(host.id, formation.give_up)
        try:
            _log.info("waiting_for_devices", devices=settings.group_size - 1)
            offers = await formation.offers()
            num_blocks = blocks(offers)
            host_blocks = sizes.blocks([offer.kv_host_bytes for offer in offers])
            if num_blocks < 1:
                raise MeshError("kv_cache_bytes of a member do not hold one block of its part; give the group more")
            await formation.form(num_blocks, host_blocks if settings.swaps else 0)
            report_formed(host, order, formation.loaded)
            host.spawn(formation.keep(), "keep_group")
            yield formation, engine
        finally:
            await formation.close()
            await part.leave()
