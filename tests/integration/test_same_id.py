"""Two processes with one id: a live member keeps it, a dead member is succeeded at once."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spotwise.cli.launch.supervision.run_state import write_state
from spotwise.core.messages.members import Member, MemberKind, MemberState
from spotwise.mesh.embedded.servers import LOOPBACK, free_port
from spotwise.mesh.ports.ports import MeshError
from spotwise.mesh.service.host import ServiceHost
from spotwise.mesh.service.settings import ServiceSettings
from spotwise.wire import subjects
from spotwise.wire.codec import encode
from tests.contracts.waiting import PATIENCE_S, until
from tests.integration.onlooker import Onlooker
from tests.integration.running_services import control_server, serving
from tests.unit.cli.builders import run_state

pytestmark = pytest.mark.mesh

LONG_S = 600.0


def predecessor(grpc_address: str) -> Member:
    return Member("member-1", MemberKind.SPOT_WATCHER, 1, MemberState.READY, "a-host", os.getpid(), grpc_address)


async def test_an_id_in_use_is_refused(settings: ServiceSettings, onlooker: Onlooker) -> None:
    async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as first, serving(first):
        with pytest.raises(MeshError, match=rf"'member-1'.*pid {os.getpid()}.*SPOTWISE_SERVICE_ID"):
            async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER):
                pass
        assert {member.incarnation for member in onlooker.heard} == {first.member.incarnation}
        assert await onlooker.registered() == [MemberState.READY]


async def test_a_member_that_still_loads_has_its_id(settings: ServiceSettings, onlooker: Onlooker) -> None:
    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER):
        await asyncio.sleep(settings.member_timeout_s * 2.5)
        assert await onlooker.registered() == [MemberState.STARTING]
        with pytest.raises(MeshError, match="'member-1'"):
            async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER):
                pass


async def test_who_follows_a_dead_member_does_not_wait_for_its_registration_to_end(
    settings: ServiceSettings, onlooker: Onlooker
) -> None:
    await onlooker.store.register(predecessor(f"{LOOPBACK}:{free_port()}"), LONG_S)
    async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, serving(host):
        await until(lambda: MemberState.READY in onlooker.states())


async def test_another_service_at_a_dead_members_port_does_not_keep_its_id_for_long(
    settings: ServiceSettings, onlooker: Onlooker
) -> None:
    async with control_server() as (_, address):
        await onlooker.store.register(predecessor(address), settings.member_timeout_s)
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, serving(host):
            await until(lambda: MemberState.READY in onlooker.states())


async def test_of_two_that_start_at_once_the_earlier_leaves(settings: ServiceSettings, onlooker: Onlooker) -> None:
    with pytest.raises(MeshError, match=r"'member-1'.*newer"):
        async with ServiceHost.open(settings, MemberKind.SPOT_WATCHER) as host, asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(host.run())
            await until(lambda: MemberState.READY in onlooker.states())
            newer = replace(host.member, incarnation=host.member.incarnation + 1)
            await onlooker.store.register(newer, PATIENCE_S)
            await onlooker.bus.publish(subjects.heartbeat(newer.kind, newer.id), encode(newer))
            await running
    [registered] = await onlooker.store.members()
    assert registered.incarnation == newer.incarnation


async def test_join_refuses_an_id_in_use(settings: ServiceSettings, onlooker: Onlooker, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "default"
    folder.mkdir(parents=True)
    write_state(folder / "state.json", run_state(nats_url=settings.nats_url, redis_url=settings.redis_url))
    async with ServiceHost.open(settings, MemberKind.TOKEN_WORKER) as host, serving(host):
        command = (sys.executable, "-m", "spotwise.cli", "join", "mixed", "--id", "member-1")
        join = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | {"SPOTWISE_HOME": str(tmp_path), "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await join.communicate()
        assert (join.returncode, said) == (1, b"")
        [line] = errors.decode().splitlines()
        assert line.startswith("error: --id 'member-1' is in use")
        assert await onlooker.registered() == [MemberState.READY]
