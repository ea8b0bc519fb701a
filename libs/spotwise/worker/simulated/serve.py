"""Runs a process of simulated workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from spotwise.core.cost_profile import CostProfile, at_speed
from spotwise.core.members import MemberKind, Pool
from spotwise.mesh.ports import HandoffHandler, KvTransport, MeshError
from spotwise.mesh.service import ServiceHost
from spotwise.mesh.service_group import ServiceGroup
from spotwise.mesh.ucx_transfer import UcxKvTransport
from spotwise.worker.engine_view import RuntimeView
from spotwise.worker.runtime import WorkerRuntime
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.kv import NoKv, TimedKvTransport
from spotwise.worker.simulated.settings import SimulatedWorkerSettings
from spotwise.worker.simulated.vocabulary import read_words


async def serve_simulated(settings: SimulatedWorkerSettings) -> None:
    """Join the mesh as every worker of the settings, and serve until a stop signal, or until all have been drained."""
    try:
        words = read_words(settings.model_dir)
    except ValueError as error:
        raise MeshError(f"the model's tokenizer cannot be read: {error}") from error
    pool = settings.pool or Pool.MIXED
    kind = MemberKind.PROMPT_WORKER if pool is Pool.PROMPT else MemberKind.TOKEN_WORKER
    costs = settings.costs()
    policy = settings.worker_policy(costs.context_parity, costs.iteration)
    view = RuntimeView()

    @contextlib.asynccontextmanager
    async def worker(host: ServiceHost) -> AsyncIterator[None]:
        runtime: WorkerRuntime | None = None
        host.introduce(pool=pool, model=settings.served_name)
        engine = SimulatedEngine(
            at_speed(costs.iteration, settings.speed),
            words,
            settings.num_blocks(costs),
            settings.kv_block_size,
            costs.kv_bytes_per_token,
            _name(costs, settings),
            settings.num_host_blocks(costs),
            settings.host_link(costs),
        )
        transport = _transport(
            settings,
            costs,
            host,
            lambda handoff, report: runtime.handoff_arrived(handoff, report) if runtime else None,
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(engine.close)
            await transport.start()
            stack.push_async_callback(transport.close)
            host.introduce(transfer_address=transport.address)
            runtime = WorkerRuntime(host, engine, transport, policy)
            view.add(host.id, runtime)
            stack.callback(view.remove, host.id)
            await runtime.start()
            runtime.drain_on_stop(settings.stop_grace_s)
            yield

    async with ServiceGroup.open(settings, view) as group:
        await group.run(settings.member_ids, kind, worker)


def _transport(
    settings: SimulatedWorkerSettings, costs: CostProfile, host: ServiceHost, on_handoff: HandoffHandler
) -> KvTransport:
    block_bytes = costs.kv_bytes_per_token * settings.kv_block_size
    incarnation = host.member.incarnation
    if settings.simulated_kv == "real":
        return UcxKvTransport(
            memory=NoKv(block_bytes),
            worker_id=host.id,
            incarnation=incarnation,
            on_handoff=on_handoff,
            host=settings.peer_host,
            push_timeout_s=settings.push_timeout_s,
        )
    return TimedKvTransport(
        bus=host.bus,
        worker_id=host.id,
        incarnation=incarnation,
        on_handoff=on_handoff,
        link=settings.link(costs),
        block_bytes=block_bytes,
        push_timeout_s=settings.push_timeout_s,
    )


def _name(costs: CostProfile, settings: SimulatedWorkerSettings) -> str:
    speed = "" if settings.speed == 1.0 else f" at {settings.speed:g}x speed"
    return f"{costs.name}{speed}, {settings.simulated_kv} KV"
