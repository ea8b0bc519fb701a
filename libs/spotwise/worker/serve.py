"""Runs a worker: loads the model, joins the mesh, serves."""

from __future__ import annotations

import contextlib
from functools import partial

from spotwise.core.messages.members import MemberKind, Pool
from spotwise.engine.model.errors import ModelError
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.claimed_numerics import agreed_settings
from spotwise.worker.engine_thread import EngineThread, engine_config
from spotwise.worker.groups.serve import serve_leader
from spotwise.worker.machine import free_memory_bytes
from spotwise.worker.placement import place_process
from spotwise.worker.runtime import RuntimeView
from spotwise.worker.serving import started_worker
from spotwise.worker.settings import WorkerSettings


async def serve_worker(settings: WorkerSettings, kind: MemberKind, home_pool: Pool) -> None:
    """Load the model, join the mesh in `home_pool` (or the settings' pool), and serve until a stop signal or a drain's end; a
    worker of several processes, or one that may become such, as the leader of a group.
    """
    pool = settings.pool or home_pool
    if settings.is_device:
        await serve_leader(settings.model_copy(update={"pool": pool}))
        return
    cores = place_process(settings)
    view = RuntimeView()
    async with contextlib.AsyncExitStack() as stack:
        host = await stack.enter_async_context(ServiceHost.open(settings, kind, view))
        host.introduce(pool=pool, model=settings.served_name, cores=cores)
        settings = await agreed_settings(settings, host)
        config = engine_config(settings)
        try:
            engine = await EngineThread.load(
                config, settings.compute_threads, partial(settings.host_bytes, free_memory_bytes())
            )
        except (ModelError, ValueError) as error:
            raise MeshError(f"the model cannot be served: {error}") from error
        stack.callback(engine.close)
        await started_worker(settings, host, engine, view, stack)
        await host.run()
