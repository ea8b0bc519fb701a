"""Makes a member of the mesh that has an engine a worker: its KV transport, its costs, its role."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from spotwise.core.worker.policy import Scheduling
from spotwise.mesh.links.ucx_transfer import TransferSettings, UcxKvTransport
from spotwise.mesh.ports.ports import HandoffHandler, KvTransport, MeshError
from spotwise.mesh.process.watchdog import WAITING_PATIENCE
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_thread import EngineThread
from spotwise.worker.engine_watch import EngineWatch
from spotwise.worker.groups.group_engine import GroupEngine
from spotwise.worker.profiles.own_profile import own_profile
from spotwise.worker.runtime import RuntimeView, WorkerRuntime, warn_of_other_weights
from spotwise.worker.settings import Cost, WorkerSettings
from spotwise.worker.transfer_memory import transfer_memory

#: Makes a worker's transport from that of this process, which takes what to call when a hand-off has arrived.
MakeTransport = Callable[[Callable[[HandoffHandler], UcxKvTransport], HandoffHandler], KvTransport]


async def started_worker(
    settings: WorkerSettings,
    host: ServiceHost,
    engine: EngineThread | GroupEngine,
    view: RuntimeView,
    stack: contextlib.AsyncExitStack,
    make_transport: MakeTransport = lambda of_this_process, on_handoff: of_this_process(on_handoff),
) -> WorkerRuntime:
    """Start the worker's role, which ends with the stack. The host reports READY once it serves.

    Raises:
        MeshError: the KV listener's port is taken, or the costs of iterations could not be measured.
    """
    runtime: WorkerRuntime | None = None
    numerics = engine.engine.numerics
    host.introduce(model_digest=engine.engine.model_digest, numerics=numerics)
    await warn_of_other_weights(host)
    security = settings.link_security()
    memory, payloads = transfer_memory(engine.engine.kv, is_encrypted=security.encrypts_from(settings.peer_host))
    copies = host.watchdog.part(f"{host.id}: KV copies", settings.iteration_timeout_s)
    stack.callback(host.watchdog.forget, copies)

    def of_this_process(on_arrival: HandoffHandler) -> UcxKvTransport:
        return UcxKvTransport(
            memory=memory,
            worker_id=host.id,
            incarnation=host.member.incarnation,
            on_handoff=on_arrival,
            settings=TransferSettings(
                host=settings.peer_host,
                port=settings.transfer_port,
                push_timeout_s=settings.push_timeout_s,
                security=security,
                crossing=settings.crossing,
            ),
            payloads=payloads,
            model_digest=engine.engine.model_digest,
            numerics_class=numerics.name,
            watch=copies,
        )

    transport = make_transport(
        of_this_process,
        lambda handoff, report: runtime.handoff_arrived(handoff, report) if runtime else None,
    )
    await transport.start()
    stack.push_async_callback(transport.close)
    host.introduce(transfer_address=transport.address)
    policy = settings.worker_policy(engine.engine.context_parity, await _iteration_cost(engine, settings))
    policy = replace(policy, max_in_flight=engine.max_in_flight)
    # In a group the member that is stuck is to be found by its own watch, before its leader ends.
    patience = WAITING_PATIENCE if isinstance(engine, GroupEngine) else 1
    watch = EngineWatch(host.watchdog, host.id, settings.iteration_timeout_s, patience)
    runtime = WorkerRuntime(host, engine, transport, policy, watch)
    stack.callback(runtime.close)
    view.add(host.id, runtime)
    stack.callback(view.remove, host.id)
    await runtime.start()
    runtime.drain_on_stop(settings.stop_grace_s)
    return runtime


async def _iteration_cost(engine: EngineThread | GroupEngine, settings: WorkerSettings) -> Cost | None:
    """Return the iteration cost that the worker's policy needs, if any, read or measured; `MeshError` where
    measuring failed.
    """
    if settings.policy != Scheduling.MLFQ:
        return None
    try:
        profile = settings.cost_profile() or await own_profile(engine, settings)
    except (OSError, ValueError) as error:
        raise MeshError(
            f"what iterations cost could not be measured: {error}; SPOTWISE_PROFILE may name a file of `spotwise profile`"
        ) from error
    return profile.iteration
