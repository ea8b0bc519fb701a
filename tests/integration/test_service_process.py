"""A service as a process: signals and exit codes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from spotwise.core.messages.members import MemberState
from spotwise.mesh.embedded.servers import LOOPBACK, free_port, nats_server, redis_server, running
from tests.contracts.waiting import PATIENCE_S, until
from tests.integration.onlooker import Onlooker
from tests.integration.running_services import start_service

pytestmark = pytest.mark.mesh


async def start_planner(**variables: str) -> asyncio.subprocess.Process:
    return await start_service("migration_planner", asyncio.subprocess.PIPE, **variables)


async def end_of(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_service_that_is_told_to_stop_leaves_in_order(
    nats_url: str, redis_url: str, onlooker: Onlooker, number: signal.Signals
) -> None:
    process = await start_planner(SERVICE_ID="planner-1", NATS_URL=nats_url, REDIS_URL=redis_url)
    try:
        await until(lambda: MemberState.READY in onlooker.states())
        assert await onlooker.registered() == [MemberState.READY]
        process.send_signal(number)
    finally:
        code, errors = await end_of(process)
    assert (code, onlooker.states()[-1]) == (0, MemberState.LEFT), errors
    assert await onlooker.registered() == []


async def test_wrong_settings_are_named_and_end_with_status_2() -> None:
    process = await start_planner(HEARTBEAT_S="0", GRPC_PORT="many", SERVICE_ID="a b")
    code, errors = await end_of(process)
    assert code == 2
    told = sorted(line.split(":")[0] for line in errors.splitlines())
    assert told == ["SPOTWISE_GRPC_PORT", "SPOTWISE_HEARTBEAT_S", "SPOTWISE_SERVICE_ID"]


async def test_a_mesh_that_cannot_be_joined_ends_with_status_1(tmp_path: Path) -> None:
    """No broker, no store, or a taken port: one line with the address, no traceback."""
    broker, store = nats_server(tmp_path), redis_server(tmp_path)
    nowhere = f"{LOOPBACK}:{free_port()}"
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, 0)
    taken = listener.sockets[0].getsockname()[1]
    with running(broker), running(store):
        processes = [
            await start_planner(NATS_URL=f"nats://{nowhere}", REDIS_URL=store.url),
            await start_planner(NATS_URL=broker.url, REDIS_URL=f"redis://{nowhere}/0"),
            await start_planner(NATS_URL=broker.url, REDIS_URL=store.url, GRPC_PORT=str(taken)),
        ]
        ends = await asyncio.gather(*map(end_of, processes))
    listener.close()
    await listener.wait_closed()
    for (code, errors), said in zip(
        ends,
        (f"no NATS server answers at nats://{nowhere}", f"no Redis server answers at redis://{nowhere}", f":{taken}"),
        strict=True,
    ):
        assert code == 1, errors
        assert said in errors
        assert "Traceback" not in errors
