"""Runs a worker: loads the model, joins the mesh, serves."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial

from spotwise.core.members import MemberKind, Pool
from spotwise.core.record import KvShare
from spotwise.core.worker.policy import Discipline
from spotwise.engine.errors import ModelError
from spotwise.mesh.ports import HandoffHandler, KvTransport, MeshError
from spotwise.mesh.service import ServiceHost
from spotwise.mesh.ucx_transfer import UcxKvTransport
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.engine_view import RuntimeView
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.groups.group_kv import GroupKvTransport
from spotwise.worker.groups.serve import engine_config, leading_group
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.other_weights import warn_of_other_weights
from spotwise.worker.own_profile import own_profile
from spotwise.worker.runtime import WorkerRuntime
from spotwise.worker.settings import Cost, WorkerSettings
from spotwise.worker.transfer_memory import transfer_memory


async def serve_worker(settings: WorkerSettings, kind: MemberKind, home_pool: Pool) -> None:
    """Load the model, join the mesh in `home_pool` (or the settings' pool), and serve until a stop signal or a drain's end."""
    if settings.core_ids:
        os.sched_setaffinity(0, settings.core_ids)
    runtime: WorkerRuntime | None = None
    view = RuntimeView()
    async with contextlib.AsyncExitStack() as stack:
        host = await stack.enter_async_context(ServiceHost.open(settings, kind, view))
        host.introduce(pool=settings.pool or home_pool, model=settings.served_name)
        engine = await _open_engine(settings, host, stack)
        host.introduce(model_digest=engine.engine.model_digest)
        await warn_of_other_weights(host)
        transport = _transport(
            settings,
            host,
            engine,
            lambda handoff, report: runtime.handoff_arrived(handoff, report) if runtime else None,
        )
        await transport.start()
        stack.push_async_callback(transport.close)
        host.introduce(transfer_address=transport.address)
        policy = settings.worker_policy(engine.engine.context_parity, await _iteration_cost(engine, settings))
        policy = replace(policy, max_in_flight=engine.max_in_flight)
        runtime = WorkerRuntime(host, engine, transport, policy)
        view.add(host.id, runtime)
        await runtime.start()
        runtime.drain_on_stop(settings.stop_grace_s)
        await host.run()


async def _open_engine(
    settings: WorkerSettings, host: ServiceHost, stack: contextlib.AsyncExitStack
) -> EngineThread | GroupEngine:
    """Load the engine, or form the group that is one; it is closed with the stack."""
    if settings.group_size > 1:
        return await stack.enter_async_context(leading_group(settings, host))
    config = engine_config(settings)
    try:
        engine = await EngineThread.load(config, settings.niceness, settings.host_bytes(free_memory_bytes()))
    except (ModelError, ValueError) as error:
        raise MeshError(f"the model cannot be served: {error}") from error
    stack.callback(engine.close)
    return engine


def _transport(
    settings: WorkerSettings, host: ServiceHost, engine: EngineThread | GroupEngine, on_handoff: HandoffHandler
) -> KvTransport:
    """Return what moves the worker's KV, not started."""
    memory, payloads = transfer_memory(engine.engine.kv)

    def of_this_process(on_arrival: HandoffHandler) -> UcxKvTransport:
        return UcxKvTransport(
            memory=memory,
            worker_id=host.id,
            incarnation=host.member.incarnation,
            on_handoff=on_arrival,
            host=settings.peer_host,
            port=settings.transfer_port,
            push_timeout_s=settings.push_timeout_s,
            payloads=payloads,
            model_digest=engine.engine.model_digest,
        )

    if not isinstance(engine, GroupEngine):
        return of_this_process(on_handoff)
    own_share = partial(KvShare, host.id, host.member.incarnation, part=memory.part)
    return GroupKvTransport(of_this_process, own_share, engine, on_handoff, memory.num_layers)


async def _iteration_cost(engine: EngineThread | GroupEngine, settings: WorkerSettings) -> Cost | None:
    """Return the iteration cost that the worker's policy needs, if any, read or measured; `MeshError` where
    measuring failed.
    """
    if settings.policy != Discipline.MLFQ:
        return None
    try:
        profile = settings.cost_profile() or await own_profile(engine, settings)
    except (OSError, ValueError) as error:
        raise MeshError(
            f"what iterations cost could not be measured: {error}; SPOTWISE_PROFILE may name a file of `spotwise profile`"
        ) from error
    return profile.iteration
