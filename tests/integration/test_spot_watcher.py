"""The spot watcher as a process, over a real broker, with the metadata of its machine from a fake server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from spotwise.core.messages.members import MemberKind, MemberState
from spotwise.core.messages.mesh import InterruptionKind
from tests.contracts.waiting import PATIENCE_S
from tests.fakes.metadata_server import Fault, MetadataServer
from tests.fakes.notices import Published
from tests.integration.onlooker import Onlooker
from tests.integration.running_services import start_service

pytestmark = pytest.mark.mesh

WORKER_IDS = ("token-0", "token-1")


def is_ready(mesh: Mesh, member_id: str) -> bool:
    return MemberState.READY in mesh.states(member_id)


def has_left(mesh: Mesh, member_id: str) -> bool:
    return mesh.states(member_id)[-1] is MemberState.LEFT


class Mesh(Published):
    """Processes of the mesh, and what they publish."""

    def __init__(self, onlooker: Onlooker, variables: dict[str, str]) -> None:
        super().__init__()
        self.onlooker = onlooker
        self._variables = variables
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, module: str, service_id: str, **variables: str) -> asyncio.subprocess.Process:
        process = await start_service(module, **self._variables, **variables, SERVICE_ID=service_id)
        self._processes[service_id] = process
        return process

    async def end(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()

    def states(self, member_id: str) -> list[MemberState]:
        """The states that a member reported, without repeats, in order."""
        return list(dict.fromkeys(member.state for member in self.onlooker.heard if member.id == member_id))


async def until_said(true: Callable[[], object], what: str) -> None:
    """Wait for the processes' messages; processes take seconds to start."""
    ends_s = time.monotonic() + 3 * PATIENCE_S
    while not true():
        assert time.monotonic() < ends_s, f"waited in vain: {what}"
        await asyncio.sleep(0.01)


@pytest.fixture
async def mesh(onlooker: Onlooker, nats_url: str, redis_url: str) -> AsyncIterator[Mesh]:
    mesh = Mesh(onlooker, {"NATS_URL": nats_url, "REDIS_URL": redis_url})
    await mesh.listen(onlooker.bus)
    try:
        yield mesh
    finally:
        await mesh.end()


async def test_a_preemption_drains_the_workers_and_azure_hears_of_it_last(mesh: Mesh, tmp_path: Path) -> None:
    """One notice for each worker with Azure's own deadline, though the metadata stumbles; both leave; then Azure may begin."""
    async with MetadataServer() as server:
        server.faults += [
            Fault("/metadata", status=500),
            Fault("/metadata", hang_up=True),
            Fault("/metadata", body=b"{"),
        ]
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"Ġone": 0, "Ġtwo": 1}}}', encoding="utf-8")
        await mesh.start(
            "worker.simulated",
            "token-0-to-1",
            MODEL_DIR=str(tmp_path),
            MODEL_NAME="a-model",
            POOL="token",
            MEMBERS=",".join(WORKER_IDS),
        )
        watcher = await mesh.start(
            "spot_watcher",
            "watcher-0",
            CLOUD="azure",
            METADATA_URL=server.url,
            CLOUD_POLL_S="0.05",
            CLOUD_BACKOFF_S="0.2",
        )
        for member_id in (*WORKER_IDS, "watcher-0"):
            await until_said(partial(is_ready, mesh, member_id), f"{member_id} to be ready")
        await until_said(lambda: len(server.asked("/metadata/scheduledevents")) > 3, "questions")
        assert mesh.drains == []

        deadline_s = server.announce(time.time() + 60)
        await until_said(lambda: len(mesh.drains) >= len(WORKER_IDS), "notices")
        if not any(MemberState.LEFT in mesh.states(worker_id) for worker_id in WORKER_IDS):
            assert server.acknowledged == []
        await until_said(lambda: server.acknowledged, "the acknowledgement")
        for worker_id in WORKER_IDS:
            # The watcher may have received the last goodbye a moment before this test.
            await until_said(partial(has_left, mesh, worker_id), f"{worker_id} to leave")
            assert mesh.states(worker_id)[-2] is MemberState.DRAINING
        assert {(each.worker_id, each.deadline_s) for each in mesh.drains} == {
            (each, deadline_s) for each in WORKER_IDS
        }
        assert {each.reason for each in mesh.drains} == {"azure: Preempt"}
        notices = [each for each in mesh.interruptions if each.kind is InterruptionKind.NOTICE]
        assert [(each.worker_ids, each.deadline_s) for each in notices] == [(WORKER_IDS, deadline_s)]
        assert time.time() < deadline_s

        server.withdraw()
        await until_said(
            lambda: [each.kind for each in mesh.interruptions][-1] is InterruptionKind.WITHDRAWN,
            "that it was withdrawn",
        )
        assert len(server.acknowledged) == 1
        watcher.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await watcher.wait() == 0
    kinds = {member.kind for member in mesh.onlooker.heard}
    assert kinds == {MemberKind.TOKEN_WORKER, MemberKind.SPOT_WATCHER}
