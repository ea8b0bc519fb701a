"""Runs a process of simulated workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from spotwise.core.messages.members import MemberKind, Pool
from spotwise.mesh.service.group import ServiceGroup
from spotwise.mesh.service.host import ServiceHost
from spotwise.worker.engine_view import RuntimeView
from spotwise.worker.simulated.engine import SimulatedEngine
from spotwise.worker.simulated.serving import served_words, simulated_engine, started_simulated_worker
from spotwise.worker.simulated.settings import SimulatedWorkerSettings


async def serve_simulated(settings: SimulatedWorkerSettings) -> None:
    """Join the mesh as every worker of the settings, and serve until a stop signal, or until all have been drained."""
    words = served_words(settings)
    pool = settings.pool or Pool.MIXED
    kind = MemberKind.PROMPT_WORKER if pool is Pool.PROMPT else MemberKind.TOKEN_WORKER
    costs = settings.costs()
    view = RuntimeView()

    @contextlib.asynccontextmanager
    async def worker(host: ServiceHost) -> AsyncIterator[None]:
        host.introduce(pool=pool, model=settings.served_name)
        engine = simulated_engine(SimulatedEngine, settings, costs, words)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(engine.close)
            await started_simulated_worker(settings, costs, host, engine, view, stack)
            yield

    async with ServiceGroup.open(settings, view) as group:
        await group.run(settings.member_ids, kind, worker)
