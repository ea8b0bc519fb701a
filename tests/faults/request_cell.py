"""One cell of the matrix: a load, what is done to processes while requests are in every phase, and what clients got."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from spotwise.cli.launch.mesh_servers import WORKER
from spotwise.core.messages.worker import MoveRequest
from spotwise.mesh.nats.bus import NatsBus
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from spotwise.wire.permissions import Principal
from spotwise.wire.roles import MeshRole
from tests.faults.disturbances import Disturbance
from tests.faults.fault_mesh import FaultMesh
from tests.faults.request_matrix import MatrixRow, row_of
from tests.faults.request_phases import PASSING, PhaseWatch, RequestPhase
from tests.faults.seeded_load import LoadShape, SeededAnswer, SeededLoad

#: A load has requests in each phase after so long.
_ALL_PHASES_S = 10.0
#: Requests go on arriving for so long after the disturbance.
_AFTERWARDS_S = 2.0
#: An operator moves a request so often, to and fro between the two workers that decode.
_MOVE_S = 0.4


def disturbed(mesh: FaultMesh, disturbance: Disturbance, victims: Sequence[str]) -> MatrixRow:
    """Disturb processes in one cell; see `cell`."""
    pids = [mesh.pid(victim) for victim in victims]

    def disturb() -> None:
        threads = [threading.Thread(target=disturbance.apply, args=(pid,)) for pid in pids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return cell(mesh, disturbance.name, " and ".join(victims), disturb)


def cell(mesh: FaultMesh, name: str, victims: str, disturb: Callable[[], None]) -> MatrixRow:
    """Run one cell, and wait until the mesh is whole again."""
    seed = zlib.crc32(f"{name}: {victims}".encode())
    phases, answers = asyncio.run(run_cell(mesh, disturb, LoadShape(), seed))
    mesh.wait_until_whole()
    again = sum(mesh.attempts_of(answer.request_id) - 1 for answer in answers if answer.done)
    return row_of(name, victims, phases, answers, mesh.words(), again)


async def run_cell(
    mesh: FaultMesh,
    disturb: Callable[[], None],
    shape: LoadShape,
    seed: int,
) -> tuple[Counter[RequestPhase], list[SeededAnswer]]:
    """Run a load, and `disturb` once requests are in every phase, or in as many as there ever are at once, at the moment at
    which one comes to a passing phase; return the phases, and what all clients got.
    """
    load = SeededLoad(lambda: mesh.urls, shape, seed)
    async with _watching(mesh) as (bus, watch):
        running = asyncio.create_task(load.run())
        moving = asyncio.create_task(_move_now_and_then(bus, watch, mesh.DECODERS))
        try:
            phases = await _all_phases(watch, PASSING[seed % len(PASSING)])
            await asyncio.to_thread(disturb)
            await asyncio.sleep(_AFTERWARDS_S)
            load.stop()
            await running
        finally:
            load.stop()
            moving.cancel()
            running.cancel()
            await asyncio.gather(moving, running, return_exceptions=True)
    return phases, load.answers


async def _all_phases(watch: PhaseWatch, passing: RequestPhase) -> Counter[RequestPhase]:
    lasting = frozenset(RequestPhase) - frozenset(PASSING)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ALL_PHASES_S):
            await watch.until_in_all(lasting)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ALL_PHASES_S):
            await watch.next_in(passing)
    return watch.present()


#: No user may listen to all subjects: what each of these may.
_LISTENS = {
    WORKER: (subjects.inbox("*"), subjects.HEARTBEATS, subjects.NOTICES),
    **{Principal(MeshRole.GATEWAY, id_): (subjects.inbox(f"{id_}.*"),) for id_ in ("gateway-0", "gateway-1")},
    Principal(MeshRole.SCHEDULER, "scheduler-0"): (subjects.inbox("scheduler-0"), subjects.REQUESTS),
    Principal(MeshRole.SCHEDULER, "scheduler-1"): (subjects.inbox("scheduler-1"),),
    **{Principal(MeshRole.PLANNER, id_): (subjects.inbox(id_),) for id_ in ("planner-0", "planner-1")},
}


@contextlib.asynccontextmanager
async def _watching(mesh: FaultMesh) -> AsyncIterator[tuple[NatsBus, PhaseWatch]]:
    servers = mesh.state.servers
    assert servers is not None
    watch = PhaseWatch()
    async with contextlib.AsyncExitStack() as stack:
        for principal, patterns in _LISTENS.items():
            listener = await NatsBus.connect(servers.broker.url_of(principal), "phase-watch")
            stack.push_async_callback(listener.close)
            await watch.start(listener, *patterns)
        bus = await NatsBus.connect(mesh.state.nats_url, "phase-watch")
        stack.push_async_callback(bus.close)
        yield bus, watch


async def _move_now_and_then(bus: NatsBus, watch: PhaseWatch, workers: Sequence[str]) -> None:
    """Order moves of running requests; a worker that does not have the request says so, and nothing happens."""
    while True:
        await asyncio.sleep(_MOVE_S)
        for choice_id, epoch in watch.movable()[:1]:
            for source, target in zip(workers, reversed(workers), strict=True):
                with contextlib.suppress(Exception):
                    order = MoveRequest(choice_id, epoch, "phase-watch", target)
                    await bus.publish(subjects.inbox_from(MeshRole.OPERATOR, source), encode(order))
